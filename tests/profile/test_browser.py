"""The report's page in a browser: everything is drawn, nothing is fetched, and no error is logged."""

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: tools/install_chromium.sh"),
    pytest.mark.slow,
]

#: Script that the test inserts into the page; the page itself has no script.
LOOK = """<script>
const errors = [];
addEventListener("error", event => errors.push(String(event.message || event.target)), true);
addEventListener("securitypolicyviolation", event => errors.push(event.blockedURI));
addEventListener("load", () => {
  const box = element => { const b = element.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; };
  const all = selector => Array.from(document.querySelectorAll(selector));
  const found = {
    errors,
    fetched: performance.getEntriesByType("resource").map(entry => entry.name),
    heads: all("h2, h3").map(head => head.textContent),
    svgs: all("svg").map(svg => ({box: box(svg), texts: Array.from(svg.querySelectorAll("text")).map(box),
                                  marks: Array.from(svg.querySelectorAll("rect, circle")).map(box)})),
    tables: all("table").map(box),
    losses: all("ol li").map(item => item.textContent),
    width: document.documentElement.scrollWidth,
  };
  const place = document.createElement("pre");
  place.id = "found";
  place.textContent = btoa(JSON.stringify(found));
  document.body.append(place);
});
</script>"""


def shown(path, tmp_path):
    """Return what the browser finds in the page, and its console messages."""
    page = path.read_text()
    assert "<script" not in page and "//" not in re.sub("</?[^>]*>", "", page)
    (tmp_path / "looked_at.html").write_text(page.replace("<head>", "<head>" + LOOK, 1))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1100,1600"]
    command = [CHROMIUM, *options, f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom"]
    done = subprocess.run(
        [*command, (tmp_path / "looked_at.html").as_uri()], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (encoded,) = re.findall('<pre id="found">(.*?)</pre>', done.stdout)
    return json.loads(base64.b64decode(encoded)), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_browser_shows_the_page(make_world, tmp_path):
    world = make_world("threads", 3, profile_to=str(tmp_path / "p"))
    w, x = world.shared(np.zeros(1000), "w"), engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.apply(np.sum, x, dtype="float64", ndim=0), "sum"), name="f<&>")
    for _ in range(3):
        f(np.arange(6.0))
    synk.all_reduce(w)
    synk.close()
    found, complaints = shown(tmp_path / "p" / "report.html", tmp_path)
    assert (found["errors"], found["fetched"], complaints) == ([], [], [])
    assert found["heads"][0].startswith("Time report: 3 ranks (cpu)")
    for head in (
        "Largest losses",
        "Time of each rank",
        "Shares of the time",
        "Calls: ",
        "Imbalance",
        "f<&>: 3",
    ):
        assert any(each.startswith(head) for each in found["heads"]), head
    assert len(found["tables"]) == 4 and all(width > 300 and height > 60 for _, _, width, height in found["tables"])
    assert 1 <= len(found["losses"]) <= 3 and found["width"] <= 1100
    # Each rank has a bar of six parts, as wide as the plot in total, and texts stay inside the plot.
    ranks = found["svgs"][0]
    assert len(ranks["marks"]) == 18
    for rank in range(3):
        widths = [width for _, _, width, _ in ranks["marks"][6 * rank : 6 * rank + 6]]
        assert 600 <= sum(widths) <= 641
    for svg in found["svgs"]:
        x0, y0, width, height = svg["box"]
        assert width == 750 and height >= 60 and svg["texts"] and svg["marks"]
        for x, y, w, h in svg["texts"] + svg["marks"]:
            assert x0 - 3 <= x and x + w <= x0 + width + 3 and y0 - 3 <= y and y + h <= y0 + height + 3
    # Only the three calls to f are listed, because only f was called several times.
    durations = [svg for svg in found["svgs"] if len(svg["marks"]) == 3]
    assert len(durations) == 1 and len({x for x, _, _, _ in durations[0]["marks"]}) == 3
