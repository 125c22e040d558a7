"use strict";
// Copy buttons and the values under the pointer. The page is complete without this script.
(() => {
  for (const command of document.querySelectorAll(".fixes .do code")) {
    if (!navigator.clipboard) break;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "copy";
    button.setAttribute("aria-label", "copy this command");
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    command.after(button);
  }

  const lanes = document.getElementById("lanes");
  const readout = document.getElementById("readout");
  if (!lanes || !readout) return;
  const key = readout.textContent;
  const data = JSON.parse(document.getElementById("data").textContent);
  const end = Number(lanes.dataset.end);
  const cursor = document.createElement("div");
  cursor.id = "cursor";
  cursor.hidden = true;
  lanes.append(cursor);

  // Index of the last value that is not greater than `wanted`, or -1.
  const before = (values, wanted) => {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= wanted) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  const milliseconds = (value) => `${(1000 * value).toPrecision(3).replace(/\.0+$/, "")} ms`;
  const percent = (value) => value === null ? "not measured" : `${Math.round(100 * value)} %`;

  const describe = (time) => {
    const parts = [`${time.toFixed(2)} s`];
    if (data.steps) {
      const at = before(data.steps.start_s, time);
      if (at >= 0) {
        const wait = data.steps.wait_s[at], compute = data.steps.compute_s[at];
        if (time <= data.steps.start_s[at] + (wait + compute) * data.steps.stride) {
          parts.push(`step ${at * data.steps.stride + 1}: ${milliseconds(wait)} waiting + ${milliseconds(compute)} computing`);
        }
      }
    }
    if (data.heat) {
      const at = Math.min(before(data.heat.time_s, time) + 1, data.heat.time_s.length - 1);
      data.heat.gpus.forEach((row, number) => parts.push(`GPU${data.heat.gpus.length > 1 ? ` ${number}` : ""} ${percent(row[at])}`));
      parts.push(`CPU ${percent(data.heat.cpu[at])}`);
    }
    return parts.join("  ·  ");
  };

  lanes.addEventListener("pointermove", (event) => {
    const plot = lanes.querySelector(".plot").getBoundingClientRect();
    const share = (event.clientX - plot.left) / plot.width;
    cursor.hidden = share < 0 || share > 1;
    if (cursor.hidden) return;
    cursor.style.left = `${event.clientX - lanes.getBoundingClientRect().left}px`;
    readout.textContent = describe(share * end);
  });
  lanes.addEventListener("pointerleave", () => { cursor.hidden = true; readout.textContent = key; });
})();
