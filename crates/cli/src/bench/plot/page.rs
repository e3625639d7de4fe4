//! The page: the picture, values to hover over, and the table. It needs nothing from a network.

use super::chart::escape;
use crate::bench::report::Report;

const STYLE: &str = "\
body { font: 15px/1.4 system-ui, sans-serif; color: #282828; max-width: 1120px; margin: 1.5em auto; padding: 0 1em; }
svg { width: 100%; height: auto; }
pre { font-size: 12px; overflow-x: auto; background: #f6f6f6; padding: 1em; }
.spot.near { fill: #000; fill-opacity: .25; }
#tip { position: absolute; display: none; background: #222; color: #fff; padding: .2em .6em; border-radius: 4px;
  font-size: 13px; pointer-events: none; white-space: nowrap; }";

/// Shows the values of the spot that is next to the pointer.
const SCRIPT: &str = "\
const svg = document.querySelector('svg'), tip = document.getElementById('tip');
const spots = [...svg.querySelectorAll('.spot')].map(node => {
  const title = node.querySelector('title'), text = title.textContent;
  title.remove(); // else the browser shows it too
  return { node, text, x: node.cx.baseVal.value, y: node.cy.baseVal.value };
});
let near = null;
function leave() {
  if (near) near.node.classList.remove('near');
  near = null;
  tip.style.display = 'none';
}
svg.addEventListener('pointerleave', leave);
svg.addEventListener('pointermove', event => {
  const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  let best = null, distance = 40;
  for (const spot of spots) {
    const d = Math.hypot(spot.x - at.x, spot.y - at.y);
    if (d < distance) { best = spot; distance = d; }
  }
  leave();
  if (!best) return;
  near = best;
  best.node.classList.add('near');
  tip.textContent = best.text;
  tip.style.display = 'block';
  const left = event.pageX + 14, room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(0, Math.min(left, room)) + 'px';
  tip.style.top = (event.pageY - 34) + 'px';
});";

/// The page around the picture.
pub(super) fn html(report: &Report, svg: &str) -> String {
    let title = escape(&report.title());
    let lines: String = report.rows.iter().map(|row| format!("{}\n", report.line(row))).collect();
    let table = escape(&format!("{}{lines}{}", report.head(), report.foot()));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<style>\n{STYLE}\n\
         </style>\n</head>\n<body>\n{svg}\n<div id=\"tip\"></div>\n<pre>{table}</pre>\n<script>\n{SCRIPT}\n</script>\n\
         </body>\n</html>\n"
    )
}
