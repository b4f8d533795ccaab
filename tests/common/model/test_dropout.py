"""Seeds of dropout masks."""

from fake_ranks import alone

from common.model.dropout import dropout_seeds


def test_masks_of_earlier_versions_are_drawn_again():
    """The numbers are those before models were divided: whoever changes them changes every run with dropout."""
    part = alone().own_part
    assert dropout_seeds(1, epoch=1, rank=0, part=part).tolist() == [1189033389, 18114953]
    assert dropout_seeds(1, epoch=2, rank=1, layer=3, part=part).tolist() == [469735273, 2298894179]


def test_epochs_ranks_layers_and_parts_have_masks_of_their_own():
    varied = [
        {"epoch": 1},
        {"rank": 1},
        {"layer": 0},
        {"layer": 1},
        {"layer": 0, "part": (0,)},
        {"layer": 0, "part": (1,)},
    ]
    seeds = [tuple(dropout_seeds(1, **({"epoch": 2, "rank": 0} | one))) for one in varied]
    assert len(set(seeds)) == len(varied)
