"""Import the modules that create pages of the site, which are not part of the package."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "docs" / "pages"


def site_page(name: str) -> ModuleType:
    spec = spec_from_file_location(f"site_page_of_{name}", FOLDER / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
