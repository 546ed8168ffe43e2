"""Draw the picture of the README and the start page from the output of the demo.

rankmill demo --json | python benchmarks/picture.py > docs/demo.svg
"""

from __future__ import annotations

import json
import sys

STEPS = (
    ("judgments", "CSV, Parquet, text"),
    ("dataset", "grouped, split, binned"),
    ("model", "web@7 in the registry"),
    ("gate", "better, or not worse?"),
    ("production", "or rolled back"),
    ("ranked lists", "and a report"),
)
NAMES = {"as they came": "order of the file", "the planted signal itself": "best possible"}
WIDTH, BOX, GAP = 640, 190, 35
STYLE = """\
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;fill:#1f2933}
.turn{fill:none}.small{font-size:14px;fill:#52606d}.name{font-size:18px;font-weight:600}.label{font-size:16px}
.box{fill:#e6f4f1;stroke:#0f766e}.line{stroke:#0f766e;stroke-width:2}.tip{fill:#0f766e}
.bar{fill:#b8c4ce}.model{fill:#0f766e}
@media (prefers-color-scheme:dark){text{fill:#e4e7eb}.small{fill:#b0bac5}.box{fill:#12312e;stroke:#5eead4}
.line{stroke:#5eead4}.tip{fill:#5eead4}.bar{fill:#52606d}.model{fill:#2dd4bf}}"""


def flow() -> list[str]:
    parts = []
    for number, (name, words) in enumerate(STEPS):
        x, y = number % 3 * (BOX + GAP), number // 3 * 84
        parts.append(f'<rect class="box" x="{x + 1}" y="{y + 2}" width="{BOX - 2}" height="60" rx="8"/>')
        parts.append(f'<text class="name" x="{x + BOX / 2}" y="{y + 28}" text-anchor="middle">{name}</text>')
        parts.append(f'<text class="small" x="{x + BOX / 2}" y="{y + 49}" text-anchor="middle">{words}</text>')
        if number % 3:
            parts.append(f'<path class="line" d="M{x - GAP} {y + 32}H{x - 6}"/>')
            parts.append(f'<path class="tip" d="M{x - 9} {y + 26}l9 6l-9 6z"/>')
    parts.append(f'<path class="line turn" d="M{WIDTH - BOX / 2} 62v11H{BOX / 2}v6"/>')
    parts.append(f'<path class="tip" d="M{BOX / 2 - 6} 77l6 9l6 -9z"/>')
    return parts


def bars(report: dict) -> list[str]:
    left, full = 196, 470
    parts = [
        f'<text class="small" x="0" y="182">NDCG@10 of the candidates of {report["queries"]} new queries in the demo, '
        "in four orders</text>"
    ]
    for number, (name, means) in enumerate(report["orders"].items()):
        y, value = 194 + number * 30, means["ndcg@10"]
        kind = "model" if name == "the model" else "bar"
        parts.append(f'<text class="label" x="0" y="{y + 16}">{NAMES.get(name, name)}</text>')
        parts.append(
            f'<rect class="{kind}" x="{left}" y="{y}" width="{value * full:.1f}" height="22" rx="3"/>'
            f'<text class="label" x="{left + value * full + 8:.1f}" y="{y + 16}">{value:.3f}</text>'
        )
    return parts


def picture(report: dict) -> str:
    words = "; ".join(f"{NAMES.get(name, name)} {means['ndcg@10']:.3f}" for name, means in report["orders"].items())
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 318" role="img">',
        f"<title>From judgments to ranked lists. NDCG@10 in the demo: {words}.</title>",
        f"<style>{STYLE}</style>",
        *flow(), *bars(report), "</svg>\n",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(picture(json.load(sys.stdin)))
