// Small pieces of the page. Text is always set as text, never as HTML.

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function swatch(colour) {
  const made = element("span", { class: "swatch" });
  made.style.background = colour;
  return made;
}

// Buttons of which one is pressed. choices: [[value, label], ...]
function makeSwitch(holder, choices, chosen, onChoose) {
  const buttons = choices.map(([value, label]) => {
    const button = element("button", { type: "button", "data-value": value, "aria-pressed": String(value === chosen) }, label);
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      onChoose(value);
    });
    return button;
  });
  holder.replaceChildren(...buttons);
}

// choices: [[value, label], ...]; keeps what was chosen where it is still there.
function fillSelect(select, choices) {
  const before = select.value;
  select.replaceChildren(...choices.map(([value, label]) => element("option", { value }, label)));
  if (choices.some(([value]) => String(value) === before)) select.value = before;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
