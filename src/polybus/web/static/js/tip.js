// The numbers of what is pointed at or touched.

const tip = () => document.getElementById("tip");

export function showTip(event, words) {
  const element = tip();
  element.textContent = words;
  element.hidden = false;
  const box = element.getBoundingClientRect();
  const right = event.clientX + 14 + box.width > innerWidth;
  element.style.left = `${Math.max(4, right ? event.clientX - 14 - box.width : event.clientX + 14)}px`;
  element.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 4))}px`;
}

export function hideTip() {
  tip().hidden = true;
}
