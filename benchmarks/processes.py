"""Compare two processes with one process (one thread each): how much faster a run is, and how long it waits for data.

example:
  python benchmarks/processes.py

The run is similar to the demo: shapes of 64 pixels, a small ResNet, RISE and the main metrics. Times are read from
timings.json: "computing" is the time from the first batch until all processes have finished the last batch; "seconds"
also includes loading (mostly imports) and the report, which do not become faster with more processes. Runs with one and
with two processes alternate, so that other load affects both equally. The relevant number is the ratio of the computing
times.
"""

import argparse
import atexit
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from saliency_bench.utils.files import read_json

METRICS = ("saliency_miou", "saliency_pointing_game", "saliency_insertion")
RATIO_ASKED, WAITING_ASKED = 1.8, 0.05

parser = argparse.ArgumentParser(
    description=__doc__.partition("\n\n")[0],
    epilog=__doc__.partition("\n\n")[2],
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
parser.add_argument("--dataset", help="name, Hub id or folder (default: shapes-xai, drawn into a temporary folder)")
parser.add_argument("--model", help="Hub id or folder (default: the demo's ResNet with random weights)")
parser.add_argument("--explainers", nargs="+", default=["gradcam", "rise:masks=500"], metavar="NAME")
parser.add_argument("--processes", type=int, default=2, metavar="N", help="number of processes (default: 2)")
parser.add_argument("--limit", type=int, default=128, metavar="N", help="number of samples (default: 128)")
parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="batch size (default: 16)")
parser.add_argument("--rounds", type=int, default=3, metavar="N", help="number of runs per variant (default: 3)")
args = parser.parse_args()

work = Path(tempfile.mkdtemp(prefix="processes-"))
atexit.register(shutil.rmtree, work, ignore_errors=True)
os.environ |= {"OMP_NUM_THREADS": "1", "HF_DATASETS_CACHE": str(work / "cache"), "TOKENIZERS_PARALLELISM": "false"}
dataset, model = args.dataset, args.model

if dataset is None:
    from saliency_bench.data.building import build

    dataset = str(build("shapes-xai", work / "shapes-xai", progress=False))

if model is None:
    from transformers import AutoModelForImageClassification, ViTImageProcessor

    from saliency_bench.data.loading import class_names, load_dataset
    from saliency_bench.push_scripts.demo import SIZE, small_resnet

    names = class_names(load_dataset(dataset))
    config = small_resnet()
    config.id2label, config.label2id = dict(enumerate(names)), {name: index for index, name in enumerate(names)}
    model = str(work / "resnet")
    AutoModelForImageClassification.from_config(config).save_pretrained(model)
    ViTImageProcessor(size={"height": SIZE, "width": SIZE}).save_pretrained(model)

kinds = {
    1: [],
    args.processes: ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(args.processes)],
}
timings = {processes: [] for processes in kinds}
records = {}
for turn in range(args.rounds):
    for processes, launch in kinds.items():
        out = work / f"run-{processes}-{turn}"
        command = [
            sys.executable, *launch, "-m", "saliency_bench", "run", "--dataset", dataset, "--model", model,
            "--explainers", *args.explainers, "--metrics", *METRICS, "--limit", str(args.limit),
            "--batch-size", str(args.batch_size), "--device", "cpu", "--json", "--out", str(out),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        timings[processes].append(read_json(out / "timings.json"))
        records[processes] = (out / "records.parquet").read_bytes()

print(f"{args.limit} samples in batches of {args.batch_size}, {', '.join(args.explainers)}; {args.rounds} rounds\n")
print(f"{'processes':>9}  {'computing':>9}  {'in all':>6}  {'waiting for data':>16}  computing, each round")
seconds = {processes: [one["computing"] for one in found] for processes, found in timings.items()}
in_all = {processes: [one["seconds"] for one in found] for processes, found in timings.items()}
waiting = {
    processes: [one["waiting_for_data"] / one["seconds"] for one in found] for processes, found in timings.items()
}
for processes in kinds:
    each = " ".join(f"{value:.1f}" for value in seconds[processes])
    median = statistics.median(seconds[processes])
    whole = statistics.median(in_all[processes])
    print(f"{processes:>9}  {median:>9.1f}  {whole:>6.1f}  {statistics.median(waiting[processes]):>16.2%}  {each}")
ratio = statistics.median(one / many for one, many in zip(seconds[1], seconds[args.processes], strict=True))
print(f"\n{args.processes} processes are {ratio:.2f} times as fast as one (required for two: at least {RATIO_ASKED})")
print(f"at most {max(map(max, waiting.values())):.2%} of the time was waiting for data (limit: {WAITING_ASKED:.0%})")
print(f"records are {'the same' if len(set(records.values())) == 1 else 'NOT the same'}, byte for byte")
