"""Shapes that stand for LIBERO's meshes, which are no part of its package: enough for the first task of libero_spatial.

They have the joints of the meshes, so that the shipped initial states fit; how they look and collide is another matter.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

BOWL = "stable_scanned_objects/akita_black_bowl"
CYLINDERS = {
    "stable_scanned_objects/plate": (0.06, 0.01, "0.9 0.9 0.9 1"),
    "stable_scanned_objects/glazed_rim_porcelain_ramekin": (0.04, 0.025, "0.8 0.7 0.6 1"),
    "stable_hope_objects/cookies": (0.03, 0.03, "0.7 0.4 0.2 1"),
}
GROCERIES = "alphabet_soup bbq_sauce butter chocolate_pudding cream_cheese ketchup milk orange_juice salad_dressing tomato_sauce"
CYLINDERS |= {f"stable_hope_objects/{name}": (0.02, 0.04, "0.2 0.5 0.2 1") for name in GROCERIES.split()}


def geoms(kind, size, rgba, pos="0 0 0", quat="1 0 0 0", density=200, seen=None):
    """What collides, and what is seen, which has the same shape if none is given."""
    at = f'pos="{pos}" quat="{quat}" rgba="{rgba}"'
    # Damped well, or a thing that the initial states drop would hop for seconds.
    collides = (
        f'<geom type="{kind}" size="{size}" {at} group="0" density="{density}" solref="0.02 3" condim="6" friction="1 0.02 0.01"/>'
    )
    shown = seen or f'type="{kind}" size="{size}"'
    return f'{collides}<geom {shown} {at} group="1" contype="0" conaffinity="0" mass="0"/>'


def cylinder(radius, height, rgba):
    """Seen as a cylinder; a box, which lies still, to the simulator."""
    return geoms("box", f"{radius} {radius} {height}", rgba, seen=f'type="cylinder" size="{radius} {height}"')


def bowl(radius, height, rgba, walls=12, thickness=0.003):
    """A bottom and a ring of walls, of which a gripper can take one."""
    side = radius * math.tan(math.pi / walls)
    inner = radius / math.sqrt(2)
    parts = [geoms("box", f"{inner} {inner} {thickness}", rgba, f"0 0 {thickness - height}", density=1500)]
    for wall in range(walls):
        angle = 2 * math.pi * wall / walls
        # Above the bottom by a hair: on a table a bowl has four contacts and not four for each wall, which cost half of a step.
        pos = f"{radius * math.cos(angle)} {radius * math.sin(angle)} 0.001"
        parts.append(
            geoms(
                "box", f"{thickness} {side} {height}", rgba, pos, f"{math.cos(angle / 2)} 0 0 {math.sin(angle / 2)}", density=1500
            )
        )
    return "".join(parts)


def site(name, size, pos="0 0 0"):
    return f'<site name="{name}" type="box" pos="{pos}" quat="1 0 0 0" size="{size}" rgba="0 0 0 0"/>'


def thing(name, inside, radius, height):
    places = {"bottom_site": f"0 0 -{height}", "top_site": f"0 0 {height}", "horizontal_radius_site": f"{radius} 0 0"}
    ends = "".join(site(key, "0.002 0.002 0.002", pos) for key, pos in places.items())
    body = f'<body><body name="object">{inside}</body>{ends}</body>'
    return f'<mujoco model="{name}"><asset/><worldbody>{body}</worldbody></mujoco>'


def cabinet():
    drawers = "".join(
        f'<body name="{level}" pos="0 0 {z}">'
        f'<joint name="{level}_level" type="slide" axis="0 1 0" range="-0.16 0.01" damping="10"/>'
        f"{geoms('box', '0.08 0.08 0.03', '0.5 0.3 0.2 1')}{site(f'{level}_region', '0.07 0.07 0.02')}</body>"
        for level, z in (("top", 0.19), ("middle", 0.12), ("bottom", 0.05))
    )
    top = f'<body name="cover" pos="0 0 0.23">{site("top_side", "0.08 0.08 0.01")}</body>'
    back = geoms("box", "0.1 0.02 0.115", "0.4 0.2 0.1 1", "0 0.12 0.115")
    return thing("wooden_cabinet", f'<body name="base">{back}{drawers}{top}</body>', 0.15, 0.0)


def stove():
    joint = '<joint name="button" type="hinge" axis="0 0 1" range="-0.005 2.1" damping="1"/>'
    # Only seen: as light as it is, a touch would spin it.
    mass = '<inertial pos="0 0 0" mass="0.05" diaginertia="1e-4 1e-4 1e-4"/>'
    shown = '<geom type="cylinder" size="0.02 0.02" group="1" contype="0" conaffinity="0"/>'
    knob = f'<body name="button" pos="0.15 0 0">{joint}{mass}{shown}</body>'
    sites = site("cook_region", "0.06 0.06 0.01") + site("burner", "0.05 0.05 0.005")
    plate = f'<body name="plate" pos="0 0 0.01">{sites}</body>'
    return thing("flat_stove", f'<body name="base">{geoms("box", "0.1 0.1 0.01", "0.3 0.3 0.3 1")}{plate}{knob}</body>', 0.1, 0.0)


def basket():
    walls = "".join(
        geoms("box", size, "0.6 0.4 0.2 1", pos)
        for size, pos in (
            ("0.1 0.1 0.005", "0 0 0"),
            ("0.005 0.1 0.05", "0.1 0 0.05"),
            ("0.005 0.1 0.05", "-0.1 0 0.05"),
            ("0.1 0.005 0.05", "0 0.1 0.05"),
            ("0.1 0.005 0.05", "0 -0.1 0.05"),
        )
    )
    inside = f'<body name="inside" pos="0 0 0.05">{site("contain_region", "0.09 0.09 0.05")}</body>'
    return thing("basket", walls + inside, 0.14, 0.005)


def write_shapes(root):
    """Writes them to a folder, for `assets`."""
    shapes = {path: (cylinder(*size), *size[:2]) for path, size in CYLINDERS.items()}
    shapes[BOWL] = (bowl(0.05, 0.02, "0.1 0.1 0.1 1"), 0.05, 0.02)
    for path, (inside, radius, height) in shapes.items():
        name = path.rpartition("/")[2]
        (root / path).mkdir(parents=True)
        (root / path / f"{name}.xml").write_text(thing(name, inside, radius, height))
    for folder in ("articulated_objects", "turbosquid_objects", "scenes"):
        (root / folder).mkdir()
    (root / "articulated_objects/wooden_cabinet.xml").write_text(cabinet())
    (root / "articulated_objects/flat_stove.xml").write_text(stove())
    (root / "stable_scanned_objects/basket").mkdir()
    (root / "stable_scanned_objects/basket/basket.xml").write_text(basket())
    shipped = Path(importlib.util.find_spec("robosuite").origin).parent / "models/assets"
    for ours, theirs in (("libero_tabletop_base_style", "table_arena"), ("libero_floor_base_style", "empty_arena")):
        scene = (shipped / f"arenas/{theirs}.xml").read_text().replace("../textures", str(shipped / "textures"))
        scene = scene.replace("tex-light-gray-plaster", "tex-wall").replace("</worldbody>", '<body name="floor"/></worldbody>')
        (root / f"scenes/{ours}.xml").write_text(scene)


if __name__ == "__main__":
    write_shapes(Path(sys.argv[1]))
