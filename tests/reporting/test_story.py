"""What numbers say: verdicts change where the numbers do, and what was not measured is not claimed."""

from graf.reporting.curves import History, read_history
from graf.reporting.run_status import distances
from graf.reporting.story import agreement, field_sentence, memorised, progress_sentence, protocol_sentence, shortcomings

import pytest
from test_curves import LITE, result, write_rows

GOOD = {
    "pairs": 64,
    "angle_deg": 15.0,
    "depth_warp_error_nerf": 5.4,
    "comparable_share_nerf": 0.7,
    "contradicted_share_nerf": 0.0,
    "turn_step_deg": 1.0,
    "popping": 1.3,
}
SOLID = {"mean_opacity": 0.2, "depth_spread": 0.2, "depth_range": 2.0, "empty_share": 0.0, "full_share": 0.0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "Views agree: a point of the surface, carried by its depth to a camera 15 degrees further on, meets a colour"),
        ({}, "differs by 5.4 of 255 steps on average, over the 70% of the surface that can be compared (64 objects)."),
        ({}, "There is hardly any contradiction: at 0.00% of the surface"),
        ({}, "Nothing jumps while an object turns by 1 degree per frame: the largest change is 1.3 times the median."),
        ({"depth_warp_error_nerf": 12.0}, "Views agree roughly"),
        ({"depth_warp_error_nerf": 40.0}, "Views do not agree"),
        ({"depth_warp_error_nerf": None}, "Whether views agree is not known"),
        ({"depth_warp_error_refined": 11.0}, "Before CCSR refines them, the field's own images differ by 5.4."),
        ({"contradicted_share_nerf": 0.05}, "There is a contradiction: at 5.00% of the surface"),
        ({"popping": 4.8}, "Something jumps"),
        ({"angle_deg": None}, "to another camera, meets a colour"),
    ],
)
def test_whether_views_agree_is_said_with_the_number_that_backs_it(change, told):
    assert told in " ".join(agreement(GOOD | change))


def test_of_what_was_not_measured_nothing_is_said():
    text = " ".join(agreement({"turn_step_deg": 1.0, "popping": None, "angle_deg": "?"}))
    assert text == "Whether views agree is not known: no surface was opaque enough to be compared."
    assert field_sentence({}) == memorised({}) == progress_sentence(History()) == ""
    assert [*shortcomings({"consistency": {}, "variety": {"unavailable": "x"}}, History(), {"data": 7})] == []
    assert distances({}) == {}


def test_a_checkerboard_is_told_from_twice_as_much_as_in_the_data_on(tmp_path):
    history = read_history(write_rows(tmp_path, {"step": 1, "loss_d": 1.0}))
    for generated, told in ((200, False), (201, True)):
        measured = {"consistency": SOLID | {"nyquist_ppm_generated": generated, "nyquist_ppm_real": 100}}
        assert any("checkerboard" in sentence for sentence in shortcomings(measured, history, {})) == told


def test_shortcomings_come_from_numbers_rows_and_config(tmp_path):
    history = read_history(write_rows(tmp_path, {"step": 1, "loss_d": None}, {"step": 2, "loss_d": 1.0}))
    measured = {
        "consistency": SOLID | {"empty_share": 0.75, "nyquist_ppm_generated": 300, "nyquist_ppm_real": 100},
        "variety": {"share_of_data": 0.4375},
        "coverage": {"coverage": 0.05, "coverage_best": 0.6},
    }
    config = {"data": {"umin": 0.25, "umax": 0.5, "vmin": 0.25, "vmax": 0.5}}  # sin(elevation) = 1 - 2 v
    told = [*shortcomings(measured, history, config)]
    assert told[0].startswith("75% of the sample images are empty")
    assert told[1:] == [
        "Neighbouring pixels alternate 3.0 times as much as in the data: look for a checkerboard.",
        "Silhouettes vary 44% as much as those of the data. Blobs and fragments differ from one another too: whether shapes "
        "are like the data's, coverage and mmd tell, or a look at the sheets.",
        "5% of the shapes compared with are the nearest one of some object; at best 60%.",
        "loss_d was not finite in 1 of the rows of training.",
        "Training saw azimuths from 90 to 180 and elevations from 0 to 30 degrees; how objects look from elsewhere was never "
        "judged.",
    ]


def test_a_run_before_the_front_saw_two_standard_deviations_of_it(tmp_path):
    data = {"camera_prior": "front", "azimuth_std_deg": 15, "elevation_std_deg": 10, "umin": 0, "umax": 1, "vmin": 0, "vmax": 1}
    history = read_history(write_rows(tmp_path, {"step": 1, "loss_d": 1.0}))
    (told,) = shortcomings({}, history, {"data": data})
    assert told.startswith("Training saw azimuths from -30 to 30 and elevations from -20 to 20 degrees;")
    assert not [*shortcomings({}, history, {"data": data | {"azimuth_std_deg": "wide"}})]


def test_kid_over_training_names_its_lowest(tmp_path):
    rows = ({"step": step, "evaluation": result(kid=kid)} for step, kid in ((100, 0.5), (200, 0.2), (300, 0.25)))
    sentence = progress_sentence(read_history(write_rows(tmp_path, *rows)))
    assert sentence == "KID went from 0.5 at step 100 to 0.25 at step 300; it was lowest at step 200, 0.2."
    assert distances(result(kid=0.123)) == {"KID": 0.123, "FID": 1.23}
    assert distances(result(values={f"kid_{LITE}": None})) == {}


def test_ccsr_keeps_to_the_field():
    assert field_sentence({"low_resolution_error": 4e-7}).endswith("to within 0.0001 of 255 steps.")
    assert field_sentence({"low_resolution_error": 0.02}).endswith("to within 2.5500 of 255 steps.")


def test_scaled_latents_are_told_with_each_number():
    scaled = {"truncation": 0.3}
    assert ", of latents scaled by 0.3." in protocol_sentence({"n_fake": 20} | scaled, 5)
    assert "(64 objects, of latents scaled by 0.3)." in " ".join(agreement(GOOD | scaled))
    assert memorised({"share_nearer": 0.5, "n_samples": 64} | scaled).startswith("50% of 64 samples, of latents scaled by 0.3,")
    said = " ".join(shortcomings({"haze": {"haze": 1.0} | scaled}, History(), {}))
    assert "in the data it is clear. This is of latents scaled by 0.3." in said
    assert "scaled" not in protocol_sentence({"truncation": 1.0}, 5) + " ".join(agreement(GOOD | {"truncation": 1.0}))


def test_neighbours_of_scaled_latents_tell_nothing_of_memorising():
    found = {"share_nearer": 0.98, "n_samples": 64}
    assert "nearly all means memorised images" in memorised(found)
    assert "memorised" not in memorised(found | {"truncation": 0.3}) + memorised(found | {"objects_differ": False})


def test_numbers_of_an_earlier_step_say_so():
    said = list(
        shortcomings(
            {"haze": {"haze": 1.0}}, History(), {"data": {"umin": 0, "umax": 1, "vmin": 0.2, "vmax": 0.4}}, "At step 4: "
        )
    )
    assert said[0].startswith("At step 4: Free space") and said[1].startswith("Training saw")
