"""The encoder `rendered`: what its view writes, the picture beside drawings made here, and a training step with it."""

from __future__ import annotations

import math
import pickle
import string
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import matplotlib
import numpy as np
import pytest
import torch
from nle import nethack
from PIL import Image, ImageDraw, ImageFont

from oni_ray.config import PolicySection, load_config
from oni_ray.envs import make_env
from oni_ray.envs.rendered_view import SIDE, RenderedView
from oni_ray.learning.algorithms import algorithm_config
from oni_ray.policy.network import ENCODERS, ActorCritic, NetworkSpec, network_sizes
from oni_ray.policy.rendered import CELL, RenderedEncoder, character_images
from oni_ray.rollout.collector import Collector
from oni_ray.rollout.games import Games

ACTIONS = 5


def raw_observation(x: int, y: int) -> dict[str, np.ndarray]:
    """A made-up map on which no two places within reach of one crop are alike."""
    place = np.arange(21 * 79).reshape(21, 79)
    blstats = np.zeros(27, np.int64)
    blstats[:2] = x, y
    message = np.frombuffer(b"Hello!".ljust(256, b"\0"), np.uint8)
    return {
        "chars": (33 + place % 94).astype(np.uint8),
        "colors": (1 + place // 94 % 15).astype(np.uint8),
        "blstats": blstats,
        "message": message,
    }


def written(view: RenderedView, raw: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    out = {name: np.full(space.shape, 99, space.dtype) for name, space in view.space.items()}
    view.write(raw, out)
    return out


def make_network(**settings: object) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(NetworkSpec(RenderedView().space, ACTIONS, encoder="rendered", **settings))


def random_observations(steps: int, columns: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    found = {}
    for name, space in RenderedView().space.items():
        shape = (steps, columns, *space.shape)
        if name == "status":
            found[name] = torch.rand(shape, generator=generator)
        else:
            found[name] = torch.randint(0, int(space.high.max()) + 1, shape, generator=generator, dtype=torch.uint8)
    return found


@pytest.mark.parametrize("place", [(40, 10), (0, 0), (78, 20), (3, 18), (74, 2)])
def test_the_crop_is_the_map_around_the_hero_and_blank_beyond_its_border(place: tuple[int, int]) -> None:
    x, y = place
    raw = raw_observation(x, y)
    out = written(RenderedView(), raw)
    assert out["chars"][6, 6] == raw["chars"][y, x] and out["colors"][6, 6] == raw["colors"][y, x]
    for row in range(12):
        for column in range(12):
            map_row, map_column = y + row - 6, x + column - 6
            inside = 0 <= map_row < 21 and 0 <= map_column < 79
            seen = (raw["chars"][map_row, map_column], raw["colors"][map_row, map_column]) if inside else (32, 0)
            assert (out["chars"][row, column], out["colors"][row, column]) == seen
    assert bytes(out["message"]) == bytes(raw["message"])


@pytest.mark.parametrize("task", ["score", "MiniHack-Room-5x5-v0"])
def test_in_a_real_game_it_is_the_terminal_around_the_cursor(task: str) -> None:
    """Wherever the cursor is on the hero, the crop is that of the terminal's map rows."""
    view = RenderedView()
    env = make_env(task, observation_keys=(*view.raw_keys, "tty_chars", "tty_colors", "tty_cursor"))
    raw, _ = env.reset(seed=1)
    generator = np.random.default_rng(0)
    compared = 0
    for _ in range(100):
        out = written(view, raw)
        assert view.space.contains(out)
        row, column = (int(number) for number in raw["tty_cursor"])
        if (column, row - 1) == tuple(raw["blstats"][:2]):
            compared += 1
            for name in ("chars", "colors"):
                terminal = np.pad(raw[f"tty_{name}"][1:22, :79], 6, constant_values=ord(" ") if name == "chars" else 0)
                assert np.array_equal(out[name], terminal[row - 1 :, column:][:12, :12])
        raw, _, terminated, truncated, _ = env.step(int(generator.integers(env.action_space.n)))
        if terminated or truncated:
            raw, _ = env.reset()
    assert compared > 50
    env.close()


def drawn_alone(character: str, color: tuple[int, int, int]) -> np.ndarray:
    """One character in colour on black, [3, 6, 6] in [0, 1]; drawn in colour at once, unlike the encoder's."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf")
    font = ImageFont.truetype(path, 36, layout_engine=ImageFont.Layout.BASIC)
    height = font.getbbox("".join(map(chr, range(33, 127))))
    image = Image.new("RGB", (math.ceil(font.getlength("x")), height[3] - height[1]))
    ImageDraw.Draw(image).text((0, -height[1]), character, fill=color, font=font)
    return np.asarray(image.resize((6, 6), Image.Resampling.BOX)).transpose(2, 0, 1) / 255


@pytest.mark.parametrize(
    ("character", "number", "color"),
    [("@", 15, (255, 255, 255)), ("<", 7, (128, 128, 128)), ("d", 9, (255, 0, 0)), ("+", 3, (128, 128, 0)),
     ("B", 8, (192, 192, 192)), ("{", 12, (0, 0, 255)), ("e", 4, (0, 0, 128)), ("g", 6, (0, 128, 128))],
)  # fmt: skip
def test_a_character_is_at_its_place_in_its_colour_and_nothing_elsewhere(
    character: str, number: int, color: tuple[int, int, int]
) -> None:
    chars, colors = np.full((2, SIDE, SIDE), ord(" "), np.uint8), np.full((2, SIDE, SIDE), 7, np.uint8)
    chars[1, 4, 11], colors[1, 4, 11] = ord(character), number
    encoder = make_network().encoder
    picture = encoder.picture(torch.from_numpy(chars), torch.from_numpy(colors)).numpy()
    assert picture.shape == (2, 3, 72, 72) and picture.dtype == np.float32
    expected = np.zeros((2, 3, 72, 72))
    expected[1, :, 4 * 6 : 5 * 6, 11 * 6 :] = drawn_alone(character, color)
    np.testing.assert_allclose(picture, expected, atol=1.5 / 255)  # both are rounded to 1/255, at other places
    assert picture[1].max() > 0.2


def test_a_whole_crop_is_drawn_cell_by_cell() -> None:
    out = written(RenderedView(), raw_observation(70, 3))
    encoder = make_network().encoder
    tensors = [torch.from_numpy(out[name])[None] for name in ("chars", "colors")]
    picture = encoder.picture(*tensors)[0]
    for row in range(SIDE):
        for column in range(SIDE):
            cell = picture[:, row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
            one = [tensor[:, row : row + 1, column : column + 1] for tensor in tensors]
            assert torch.equal(cell, encoder.picture(*one)[0])


def test_all_characters_of_the_map_can_be_told_apart() -> None:
    images = character_images()
    codes = [ord(character) for character in string.printable.strip()]
    assert len(codes) == 94
    for first in codes:
        for second in codes:
            assert first == second or np.abs(images[first] - images[second]).max() > 0.2, (chr(first), chr(second))
    assert not images[[0, 9, 27, 32, 127, 155]].any(), "blanks and control characters are blank"


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_shapes_time_first_and_a_gradient_for_every_parameter(core: str) -> None:
    network = make_network(core=core, hidden_size=64, channels=8)
    resets = torch.zeros(3, 4, dtype=torch.bool)
    resets[1, 2] = True
    logits, values, state = network(random_observations(3, 4), network.initial_state(4), resets)
    assert logits.shape == (3, 4, ACTIONS) and values.shape == (3, 4)
    assert all(part.shape == (4, 64) for part in state.values())
    (logits.square().sum() + values.square().sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_a_step_is_computed_alone_as_in_a_batch() -> None:
    """Nothing of one row reaches another, and each part of the observation reaches the output."""
    encoder = make_network(channels=8).encoder
    rows = {name: part[0] for name, part in random_observations(1, 3).items()}
    together = encoder(rows)
    assert together.shape == (3, encoder.width)
    torch.testing.assert_close(encoder({name: part[1:2] for name, part in rows.items()}), together[1:2])
    for name, part in rows.items():
        changed = {**rows, name: torch.cat((part[:2], part[:1]))}
        different = (encoder(changed) - together).abs().amax(dim=1) > 1e-4
        assert different.tolist() == [False, False, True], name


def test_the_reference_networks_sizes() -> None:
    """Convolutions 8x8, 4x4 and 3x3 of 32, 64 and 128 channels; from 72 pixels they leave 17, 7 and 3."""
    network = make_network(core="gru", hidden_size=512)
    assert isinstance(network.encoder, RenderedEncoder)
    weights = {name: tuple(part.shape) for name, part in network.encoder.named_parameters() if part.dim() > 1}
    status = RenderedView().space["status"].shape[0]
    assert list(weights.values()) == [
        *((32, 3, 8, 8), (64, 32, 4, 4), (128, 64, 3, 3), (512, 128 * 3 * 3)),
        *((128, status), (128, 128), (128, 256), (128, 128)),
    ]
    assert network.core.weight_hh_l0.shape == (3 * 512, 512)
    assert network.encoder.width == network.core.input_size == 512 + 128 + status + 128


def test_the_drawn_characters_are_part_of_the_weights() -> None:
    """A policy goes on seeing what it was trained with, and a changed copy does not change other networks."""
    network, other = make_network(hidden_size=8), make_network(hidden_size=8)
    with torch.no_grad():
        network.encoder.characters.mul_(0.5)
    fresh = torch.tensor(character_images())
    assert torch.equal(make_network(hidden_size=8).encoder.characters, fresh)
    other.load_state_dict(pickle.loads(pickle.dumps(network)).state_dict())
    assert torch.equal(other.encoder.characters, fresh * 0.5)
    assert torch.equal(make_network(hidden_size=8).encoder.characters, fresh)


def test_the_configuration_knows_every_encoder() -> None:
    assert set(get_args(PolicySection.model_fields["encoder"].annotation)) == set(ENCODERS)


@pytest.fixture
def games() -> Iterator[Games]:
    config = load_config(
        None, ["policy.encoder=rendered", "rollout.envs_per_runner=2", "algorithm.batch_size=64", "policy.core=gru"]
    )
    games = Games(config, np.random.SeedSequence(1))
    yield games
    games.close()


def test_games_show_what_the_configured_encoder_reads(games: Games) -> None:
    config = load_config(None, ["policy.encoder=rendered", "policy.hidden_size=16", "policy.channels=4"])
    sizes = network_sizes(config.policy)
    network = ActorCritic(NetworkSpec(games.observation_space, int(games.action_space.n), **sizes))
    fragment = Collector(games, network, 8, np.random.default_rng(1)).collect(0, 1)
    assert fragment.observations["chars"].shape == (9, 2, SIDE, SIDE)
    heroes = fragment.observations["chars"][:, :, 6, 6]
    assert (heroes == ord("@")).all()
    assert fragment.observations["message"].shape == (9, 2, *nethack.MESSAGE_SHAPE)


def test_a_training_step_with_the_real_algorithm_and_a_reward_of_observations(ray_cluster: None) -> None:
    """rnd makes encoders of its own, smaller than the policy's."""
    config = load_config(
        None,
        [
            "policy.encoder=rendered",
            "policy.core=gru",
            "policy.hidden_size=32",
            "policy.channels=8",
            "reward.type=rnd",
            "rollout.envs_per_runner=4",
            "rollout.fragment_length=8",
            "algorithm.batch_size=32",
            "debug.synchronous=true",
        ],
    )
    algorithm = algorithm_config(config, None, None, 0).build_algo()
    try:
        before = algorithm.learner_group.get_weights()["default_policy"]
        before = {name: np.array(part) for name, part in before.items()}
        learner = algorithm.train()["learners"]
        after = algorithm.learner_group.get_weights()["default_policy"]
    finally:
        algorithm.stop()
    assert math.isfinite(float(learner["default_policy"]["policy_loss"]))
    assert float(learner["intrinsic_reward_mean"]) > 0
    changed = {name for name, part in before.items() if not np.array_equal(part, after[name])}
    drawn = {"network.encoder.characters", "network.encoder.palette"}
    assert changed == set(before) - drawn
