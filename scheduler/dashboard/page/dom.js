// Elements of the page. Text that comes from outside is only ever set as text, never parsed as HTML, and an element is
// touched only if what it shows has changed.

// make('td', {class: 'number', title: '...'}, 'text', child, ...). A property `onclick` is a listener.
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function setText(element, text) {
  text = String(text);
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

// Makes the children of `parent` those of `items`, in this order. A child belongs to a key and is used again, so focus
// and selection survive. create(item) makes a child, update(child, item) shows the item in it.
export function reconcile(parent, items, keyOf, create, update) {
  const old = parent.byKey ?? new Map(), now = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const child = old.get(key) ?? create(item);
    update(child, item);
    now.set(key, child);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const [key, child] of old)
    if (!now.has(key)) child.remove();
  parent.byKey = now;
}

// A table of which one page of rows is shown, with a search field and buttons to turn pages.
//   columns: [{title, class, cell(element, item)}], where `cell` writes the item's value into the element
//   label: what the table is, for those who cannot see it
//   searched(item): the text that the search looks into
export class PagedTable {
  constructor({label, columns, keyOf, searched, rows = 50, empty = 'none'}) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.searched = searched;
    this.rows = rows;
    this.page = 0;
    this.items = [];
    this.empty = empty;
    this.body = make('tbody');
    this.search = make('input', {type: 'search', 'aria-label': `Search ${label}`, placeholder: 'search',
                                 oninput: () => this.turnTo(0)});
    this.back = make('button', {type: 'button', onclick: () => this.turnTo(this.page - 1)}, 'Previous');
    this.next = make('button', {type: 'button', onclick: () => this.turnTo(this.page + 1)}, 'Next');
    this.place = make('span', {class: 'place', role: 'status'});
    this.none = make('p', {class: 'none'}, empty);
    const head = make('tr', {}, ...columns.map((column) => make('th', {scope: 'col', class: column.class}, column.title)));
    this.table = make('table', {'aria-label': label}, make('thead', {}, head), this.body);
    this.pager = make('div', {class: 'pager'}, this.search, this.back, this.place, this.next);
    this.element = make('div', {class: 'paged'}, this.pager, this.table, this.none);
  }

  turnTo(page) {
    this.page = page;
    this.update(this.items);
  }

  update(items) {
    this.items = items;
    const wanted = this.search.value.trim().toLowerCase();
    const found = wanted ? items.filter((item) => this.searched(item).toLowerCase().includes(wanted)) : items;
    const last = Math.max(0, Math.ceil(found.length / this.rows) - 1);
    this.page = Math.min(Math.max(0, this.page), last);
    const begin = this.page * this.rows, shown = found.slice(begin, begin + this.rows);
    show(this.pager, items.length > 10);
    show(this.none, found.length === 0);
    show(this.table, found.length > 0);
    setText(this.none, items.length > 0 ? 'nothing found' : this.empty);
    setText(this.place, found.length ? `${begin + 1} to ${begin + shown.length} of ${found.length}` : '0');
    for (const [button, disabled] of [[this.back, this.page === 0], [this.next, this.page === last]])
      if (button.disabled !== disabled) button.disabled = disabled;
    reconcile(this.body, shown, this.keyOf,
              () => make('tr', {}, ...this.columns.map((column) => make('td', {class: column.class}))),
              (row, item) => this.columns.forEach((column, at) => column.cell(row.children[at], item, row)));
  }
}
