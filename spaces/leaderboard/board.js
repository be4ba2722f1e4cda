// The URL contains the state of the page. Links and forms change the URL, the server generates the HTML for it, and this
// script inserts the HTML into the page.
const part = (name) => element.querySelector(`[data-part="${name}"]`);
let latest = 0;

function kept() {
  // URL parameters that belong to Gradio, such as the theme.
  return [...new URLSearchParams(location.search)].filter(([name]) => name.startsWith('__'));
}

function remember(query, push) {
  const own = new URLSearchParams([...new URLSearchParams(query), ...kept()]).toString();
  const address = location.pathname + (own ? `?${own}` : '');
  history[push ? 'pushState' : 'replaceState']({}, '', address);
  // A Space is displayed in a frame of the Hub's page, which then shows the query in its own URL.
  if (window.parent !== window) window.parent.postMessage({ queryString: query }, '*');
}

async function show(query, { push = true, typing = false, focus = '' } = {}) {
  const number = ++latest;
  const body = part('body');
  body.setAttribute('aria-busy', 'true');
  let found;
  try {
    found = await server.show(query);
  } catch (error) {
    body.removeAttribute('aria-busy');
    part('problem').textContent = 'The server does not respond; reload the page.';
    return;
  }
  if (number !== latest) return;
  part('problem').textContent = '';
  part('head').innerHTML = found.head;
  if (typing) refreshMenus(found.form);
  else part('form').innerHTML = found.form;
  body.innerHTML = found.body;
  body.removeAttribute('aria-busy');
  document.title = found.title;
  remember(found.query, push);
  const opened = !typing && new URLSearchParams(found.query).has('row') && element.querySelector('#lb-detail');
  const named = (one) => one.dataset.focus === focus || (one.name && `field-${one.name}` === focus);
  const target = [...element.querySelectorAll('[data-focus], select')].find(named);
  if (opened && focus.match(/^(row|compare)-|^$/)) {
    opened.scrollIntoView({ block: 'nearest' });
    opened.focus({ preventScroll: true });
  } else if (target) {
    target.focus();
  }
}

function refreshMenus(html) {
  // The choices depend on the other filters. The form is kept, so that typing is not interrupted.
  const fresh = document.createElement('template');
  fresh.innerHTML = html;
  const active = document.activeElement;
  for (const menu of part('form').querySelectorAll('[data-menu]')) {
    const other = fresh.content.querySelector(`[data-menu="${menu.dataset.menu}"]`);
    if (!other) continue;
    const [list, top] = [menu.querySelector('fieldset'), menu.querySelector('fieldset')?.scrollTop];
    const inside = list.contains(active);
    menu.querySelector('summary').innerHTML = other.querySelector('summary').innerHTML;
    list.innerHTML = other.querySelector('fieldset').innerHTML;
    list.scrollTop = top;
    if (inside) ([...list.querySelectorAll('input')].find((one) => one.value === active.value) || menu.querySelector('summary')).focus();
  }
}

function closeMenus(except) {
  for (const menu of element.querySelectorAll('[data-menu][open]')) if (menu !== except) menu.open = false;
}

function asked(form) {
  const pairs = [...new FormData(form)].filter(([name, value]) => value !== '');
  return new URLSearchParams(pairs).toString();
}

async function download(kind) {
  let found;
  try {
    found = await server.export_rows({ kind, query: location.search, address: location.href });
  } catch (error) {
    part('problem').textContent = 'The server does not respond; reload the page.';
    return;
  }
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([found.text], { type: found.type }));
  link.download = found.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

element.addEventListener('click', (event) => {
  const link = event.target.closest('a');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (link.hasAttribute('data-go')) {
    event.preventDefault();
    show(link.getAttribute('href').slice(1), { focus: link.dataset.focus || '' });
  } else if (link.dataset.export) {
    event.preventDefault();
    download(link.dataset.export);
  } else if (link.hasAttribute('data-copy')) {
    event.preventDefault();
    navigator.clipboard?.writeText(location.href).then(() => { link.textContent = 'copied'; });
  }
});

let timer;
element.addEventListener('input', (event) => {
  const form = event.target.closest('form[data-form]');
  if (!form) return;
  clearTimeout(timer);
  const inBody = part('body').contains(form);
  const focus = inBody ? `field-${event.target.name}` : '';
  timer = setTimeout(() => show(asked(form), { push: false, typing: true, focus }), event.target.type === 'search' ? 150 : 0);
});
element.addEventListener('toggle', ({ target }) => {
  const list = target.open && target.matches('[data-menu]') && target.querySelector('fieldset');
  if (list) list.classList.toggle('lb-beyond', list.getBoundingClientRect().right > document.documentElement.clientWidth);
}, true);
document.addEventListener('click', (event) => closeMenus(event.target.closest?.('[data-menu]')));
element.addEventListener('keydown', (event) => {
  const menu = event.key === 'Escape' && event.target.closest('[data-menu][open]');
  if (!menu) return;
  closeMenus();
  menu.querySelector('summary').focus();
});
element.addEventListener('submit', (event) => event.preventDefault());
window.addEventListener('popstate', () => show(location.search, { push: false }));
show(location.search, { push: false, focus: 'none' });
