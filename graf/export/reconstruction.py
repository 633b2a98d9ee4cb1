"""Pictures of one object with their cameras, in the formats of reconstruction programs.

    out/images/0000.png, 0001.png, ...      RGB
    out/sparse/                             a COLMAP model as text, without points: cameras.txt, images.txt, points3D.txt
    out/transforms.json                     for nerfstudio and instant-ngp, and for this suite's data.type: images

The pictures are opaque, on the background: a refined picture has no opacity of its own to cut it out by.

All three measure pixels from the picture's corner, so that the centre of pixel i is at i + 1/2, while here pixel i is i - W / 2
off the optical axis (graf/rays.py). The principal point is therefore at W / 2 + 1/2, half a pixel beside the middle. COLMAP
triangulates points for the given cameras (camera_params are the last four numbers of cameras.txt, with commas) by

    colmap feature_extractor --database_path db --image_path images --ImageReader.single_camera 1 \\
        --ImageReader.camera_model PINHOLE --ImageReader.camera_params FX,FY,CX,CY
    colmap exhaustive_matcher --database_path db
    colmap point_triangulator --database_path db --image_path images --input_path sparse --output_path points --clear_points 1
"""

import hashlib
import json
import math
from pathlib import Path

from graf.camera import elevation_of_v, focal_length, sweep_poses, view_azimuths
from graf.config import DataConfig
from graf.config.digest import rendering_sha256
from graf.errors import GrafError
from graf.models.generator import Generator, weights_hash
from graf.pictures.outputs import as_uint8, write_image
from graf.pictures.sampling import Objects, render_views
from graf.rays import visible_radius
from graf.runtime.console import progress
from graf.runtime.files import is_taken, read_object, write_text

import numpy as np
from scipy.spatial.transform import Rotation
from torch import Tensor

RINGS, VIEWS_A_RING = 3, 24  # neighbours 15 degrees apart, which COLMAP's features still match
MANIFEST = "made_from.json"
OPENCV_AXES = np.diag([1.0, -1.0, -1.0])  # cameras of COLMAP and viser have y down and look along +z


def reconstruction_poses(data: DataConfig) -> Tensor:
    """pose_c2w (72, 3, 4) around the object on three rings, which part the config's v_range evenly."""
    top, bottom = data.v_range
    heights = [top + (bottom - top) * (ring + 0.5) / RINGS for ring in range(RINGS)]
    return sweep_poses(view_azimuths(VIEWS_A_RING, data).tolist(), [elevation_of_v(v) for v in heights], data)


def write_reconstruction(
    generator: Generator, objects: Objects, pose_c2w: Tensor, out: Path, resolution: int | None = None
) -> list[Path]:
    """Render one object, latents (1, Z) and class (1,), from pose_c2w (V, 3, 4) into the folder `out`, transforms.json last.

    Pictures that a stopped one has left there are kept; made_from.json beside them says what they show.
    resolution in pixels, by default data.imsize. Returns images, sparse and transforms.json in `out`.
    Raises GrafError for orthographic cameras, which neither format has, and where `out` holds files of other programs.
    """
    generator = generator.without_background()  # one that does not turn with the camera would mislead them
    data = generator.config.data
    if data.orthographic:
        raise GrafError(
            "reconstruction: data.orthographic is true, and neither COLMAP nor transforms.json has orthographic cameras; "
            "take --mesh for the shape of this object"
        )
    width = resolution or data.imsize
    names = [f"{number:04d}.png" for number in range(len(pose_c2w))]
    keep_pictures_of(made_from(generator, objects, pose_c2w, width), out)
    views = zip(names, pose_c2w, strict=True)
    for name, pose in progress(views, total=len(names), desc="reconstruction", unit="image"):
        if not (out / "images" / name).exists():
            view = render_views(generator, objects, pose[None], resolution)
            write_image(out / "images" / name, as_uint8(view.images[0]))
    poses = pose_c2w.double().cpu().numpy()
    for file, text in colmap_model(names, poses, width, data.fov).items():
        write_text(out / "sparse" / file, text)
    write_text(out / "transforms.json", transforms(names, poses, width, data))
    return [out / "images", out / "sparse", out / "transforms.json"]


def keep_pictures_of(shown: str, out: Path) -> None:
    """Remove pictures whose manifest has another digest than `made_from`.

    Raises GrafError where the folder holds files but no manifest, which marks its pictures as ours.
    """
    if out.is_dir() and not (out / MANIFEST).exists() and is_taken(out):
        raise GrafError(
            f"{out}: pictures would be written here, but it holds files that were not made by this program (it has no "
            f"{MANIFEST}); name another folder with --out, or move them away"
        )
    content = {"made_from": shown}
    if read_object(out / MANIFEST) != content:
        for picture in (out / "images").glob("????.png"):
            picture.unlink()
        write_text(out / MANIFEST, json.dumps(content))


def made_from(generator: Generator, objects: Objects, poses: Tensor, resolution: int) -> str:
    """A digest of all that pictures depend on: pictures with the same digest can be kept."""
    settings = weights_hash(generator), rendering_sha256(generator.config), resolution
    digest = hashlib.sha256(repr(settings).encode())
    for tensor in (*objects, poses):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def colmap_model(names: list[str], pose_c2w: np.ndarray, width: int, fov_deg: float) -> dict[str, str]:
    """The files of a COLMAP model as text, by name: V pictures of one PINHOLE camera, pose_c2w (V, 3, 4), and no points.

    A picture has a rotation, as a quaternion with its real part first, and a translation that take the world to a camera whose
    x is right, y down and z ahead; and a second line for its points, which is empty. See colmap.github.io/format.html.
    """
    focal, centre = focal_length(fov_deg, width), (width + 1) / 2
    images = ["# IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, then a line of POINTS2D"]
    for number, (name, pose) in enumerate(zip(names, pose_c2w, strict=True), start=1):
        rotation = OPENCV_AXES @ pose[:, :3].T
        x, y, z, w = Rotation.from_matrix(rotation).as_quat().tolist()
        translation = (-rotation @ pose[:, 3]).tolist()
        images += [" ".join(map(str, (number, w, x, y, z, *translation, 1, name))), ""]
    camera = f"1 PINHOLE {width} {width} {focal} {focal} {centre} {centre}"
    return {
        "cameras.txt": f"# CAMERA_ID MODEL WIDTH HEIGHT FX FY CX CY\n{camera}\n",
        "images.txt": "\n".join(images) + "\n",
        "points3D.txt": "# POINT3D_ID X Y Z R G B ERROR TRACK[]\n",
    }


def transforms(names: list[str], pose_c2w: np.ndarray, width: int, data: DataConfig) -> str:
    """The transforms.json of pictures in images/ from pose_c2w (V, 3, 4), whose axes are already those of this format.

    aabb is the cube around what every camera sees, which instant-ngp takes for its own.
    """
    focal, centre, radius = focal_length(data.fov, width), (width + 1) / 2, visible_radius(data)
    frames = [
        {"file_path": f"images/{name}", "transform_matrix": [*pose.tolist(), [0.0, 0.0, 0.0, 1.0]]}
        for name, pose in zip(names, pose_c2w, strict=True)
    ]
    content = {
        "camera_angle_x": math.radians(data.fov),
        "fl_x": focal,
        "fl_y": focal,
        "cx": centre,
        "cy": centre,
        "w": width,
        "h": width,
        "aabb": [[-radius] * 3, [radius] * 3],
        "frames": frames,
    }
    return json.dumps(content, indent=1) + "\n"
