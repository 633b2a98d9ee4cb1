"""The page of rounds that find cameras."""

import json

from graf.finding.rounds import Round
from graf.pictures.outputs import write_image
from graf.reporting.cameras_page import write_cameras_page

import torch


def test_the_page_tells_each_rounds_errors_and_holds_its_sheet(tmp_path):
    for number, right in ((1, 0.5), (2, 0.875)):
        this = Round(tmp_path, number)
        curve = [{"confidence": 0.4, "right": right, "n": 8}]
        views = {"median_deg": 4.26, "within_15_deg": right, "confused": 0.125, "height": 0.01, "calibration": curve}
        this.folder.mkdir()
        doubt = {"doubt": "reads nothing"} if number == 1 else {"turned": [0.0831, 0.02]}  # an older version wrote neither
        this.record.write_text(json.dumps({"round": number, "held_out_views": views, "confidence": 0.75} | doubt))
        write_image(this.sheet, torch.zeros(3, 8, 8, dtype=torch.uint8))
    page = write_cameras_page(tmp_path, 2)
    text = page.read_text(encoding="utf-8")
    assert "Round 0" not in text  # an older version drew no sheet of it
    Round(tmp_path, 0).folder.mkdir()
    write_image(Round(tmp_path, 0).sheet, torch.zeros(3, 8, 8, dtype=torch.uint8))
    text = write_cameras_page(tmp_path, 2).read_text(encoding="utf-8")
    assert page == tmp_path / "cameras.html"
    assert text.count("<td>4.3 degrees</td>") == 2 and "<td>50 %</td>" in text and "<td>88 %</td>" in text
    assert text.count('src="data:image/png;base64,') == 4  # the curve, and three sheets
    assert text.index("<h2>Round 2") < text.index("<h2>Round 1") < text.index("<h2>Round 0")
    assert "<strong>Round 1:</strong> the estimator reads nothing" in text and "<strong>Round 2:</strong>" not in text
    assert "In round 2 reconstructions then corrected these cameras, and turned\n8.3 %, then 2.0 % of the" in text
    assert text.count("reconstructions") == 1
    assert "http" not in text.replace("http-equiv", "")
