"""Views of a mesh, drawn by OpenGL without a window: on a GPU, or by Mesa on a CPU.

A view is what `graf.rays.camera_rays` sees: pixel i of a row stands at i - W / 2 from the optical axis. The light is fixed to
the world, as the toy cars' is, so that a point of the object has one colour from all sides.
"""

import sys
from collections.abc import Sequence

from graf.camera import focal_length
from graf.config import DataConfig
from graf.data.raycast import LIGHT
from graf.errors import GrafError
from meshes.reading import Part

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

try:
    import moderngl
except ModuleNotFoundError:  # requirements.txt leaves it out where it has no wheel
    moderngl = None

SUPERSAMPLING = 4  # samples along each side of a pixel
TEXTURE_SIDE = 1024  # pixels, at most
SRGB8_ALPHA8 = 0x8C43  # GL's name of the format that is filtered in linear light
AMBIENT, DIFFUSE = 0.3, 0.8  # of linear light

VERTEX_SHADER = """
#version 330
uniform mat4 clip_from_world;
in vec3 position; in vec3 normal; in vec2 texture_position; in vec4 colour;
out vec3 world; out vec3 smooth_normal; out vec2 uv; out vec4 factor;
void main() {
    world = position; smooth_normal = normal; uv = texture_position; factor = colour;
    gl_Position = clip_from_world * vec4(position, 1);
}
"""

# A sample is kept or left as a whole, a part of each pixel's that is as large as the surface's opacity: so no order is needed.
FRAGMENT_SHADER = """
#version 330
uniform sampler2D base; uniform vec3 camera; uniform vec3 light; uniform float ambient; uniform float diffuse;
in vec3 world; in vec3 smooth_normal; in vec2 uv; in vec4 factor;
out vec4 seen;
const float threshold[16] = float[](0, 8, 2, 10, 12, 4, 14, 6, 3, 11, 1, 9, 15, 7, 13, 5);
void main() {
    vec3 face = cross(dFdx(world), dFdy(world));
    vec3 outward = dot(face, camera - world) * dot(face, smooth_normal) < 0 ? -smooth_normal : smooth_normal;
    vec4 colour = factor * texture(base, uv);
    ivec2 place = ivec2(gl_FragCoord.xy) & 3;
    if (colour.a <= (threshold[4 * place.y + place.x] + 0.5) / 16) discard;
    float towards_light = 0.5 + 0.5 * dot(normalize(outward), light);
    seen = vec4(colour.rgb * (ambient + diffuse * towards_light), 1);
}
"""


class MeshRenderer:
    """An OpenGL context, and the mesh that was last shown to it."""

    def __init__(self, data: DataConfig):
        """Views of data.imsize pixels a side with data.fov, between data.near and data.far. Raises GrafError without
        moderngl or OpenGL."""
        if moderngl is None:
            raise GrafError(
                "meshes are drawn with the package moderngl, which is not installed; pip install moderngl (it needs a C++ "
                "compiler on Linux or Windows on ARM)"
            )
        self.data = data
        try:
            platform = {"backend": "egl"} if sys.platform == "linux" else {}
            self.context = moderngl.create_context(standalone=True, require=330, **platform)
        except Exception as error:  # glcontext and moderngl raise Exception itself
            raise GrafError(
                f"meshes are drawn with OpenGL 3.3, of which there is none here ({error}); "
                "on Debian or Ubuntu: apt install libgl1 libegl1 libgl1-mesa-dri"
            ) from None
        self.context.gc_mode = "context_gc"
        self.context.enable(moderngl.DEPTH_TEST)
        side = (data.imsize * SUPERSAMPLING,) * 2
        colour, depth = self.context.texture(side, 4, dtype="f2"), self.context.depth_renderbuffer(side)
        self.frame = self.context.framebuffer([colour], depth)
        self.program = self.context.program(vertex_shader=VERTEX_SHADER, fragment_shader=FRAGMENT_SHADER)
        for name, value in (("light", LIGHT), ("ambient", AMBIENT), ("diffuse", DIFFUSE)):
            self.program[name] = value
        self.parts: list[tuple[moderngl.VertexArray, moderngl.Texture]] = []

    def show(self, parts: Sequence[Part]) -> None:
        """Draw these parts from now on. Raises ValueError where OpenGL does not take them."""
        self.parts = []
        with self.context:
            self.context.gc()
            try:
                self.parts = [(self._triangles(part), self._texture(part.texture)) for part in parts]
            except moderngl.Error as error:
                raise ValueError(f"cannot be drawn ({error})") from error

    def render(self, pose_c2w: Tensor) -> Tensor:
        """The view (H, W, 4) of a camera (3, 4), RGBA uint8: sRGB and straight alpha, the covered share of a pixel."""
        clip_from_world = projection(self.data) @ world_to_camera(pose_c2w)
        with self.context:
            self.program["clip_from_world"].write(clip_from_world.T.contiguous().numpy().tobytes())
            self.program["camera"] = tuple(pose_c2w[:, 3].tolist())
            self.frame.use()
            self.frame.clear()
            for triangles, texture in self.parts:
                texture.use()
                triangles.render()
            samples = torch.frombuffer(bytearray(self.frame.read(components=4, dtype="f2")), dtype=torch.float16)
        return _resolved(samples.float().view(*self.frame.size, 4)).flip(0)  # OpenGL's first row is the lowest

    def _triangles(self, part: Part) -> "moderngl.VertexArray":
        corners = np.hstack([part.positions, part.normals, part.texture_positions, part.colours]).astype(np.float32)
        names = ("position", "normal", "texture_position", "colour")
        return self.context.vertex_array(self.program, [(self.context.buffer(corners.tobytes()), "3f 3f 2f 4f", *names)])

    def _texture(self, image: Image.Image | None) -> "moderngl.Texture":
        image = Image.new("RGBA", (1, 1), "white") if image is None else image.copy()
        image.thumbnail((TEXTURE_SIDE, TEXTURE_SIDE))
        pixels = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM).tobytes()
        texture = self.context.texture(image.size, 4, pixels, internal_format=SRGB8_ALPHA8)
        texture.build_mipmaps()
        texture.filter = (moderngl.LINEAR_MIPMAP_LINEAR, moderngl.LINEAR)
        return texture


def projection(data: DataConfig) -> Tensor:
    """Camera to clip coordinates (4, 4).

    OpenGL has the centre of pixel i at i + 1/2 and `camera_rays` at i, so that the optical axis lies half a pixel further to
    the right and further down than the frame's centre.
    """
    width, near, far = data.imsize, 0.99 * data.near, 1.01 * data.far
    scale = 2 * focal_length(data.fov, width) / width
    return torch.tensor(
        [
            [scale, 0, -1 / width, 0],
            [0, scale, 1 / width, 0],
            [0, 0, -(far + near) / (far - near), -2 * far * near / (far - near)],
            [0, 0, -1, 0],
        ]
    )


def world_to_camera(pose_c2w: Tensor) -> Tensor:
    """The inverse (4, 4) of a pose_c2w (3, 4)."""
    return torch.linalg.inv(torch.cat([pose_c2w, torch.tensor([[0.0, 0.0, 0.0, 1.0]])]))


def _resolved(samples: Tensor) -> Tensor:
    """The mean over each pixel of samples (S H, S W, 4), linear light and coverage, as RGBA uint8 (H, W, 4)."""
    mean = F.avg_pool2d(samples.movedim(-1, 0)[None], SUPERSAMPLING)[0].movedim(0, -1)
    light, alpha = mean[..., :3] / mean[..., 3:].clamp_min(1e-6), mean[..., 3:]
    srgb = torch.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return (torch.cat([srgb, alpha], dim=-1).clamp(0, 1) * 255).round().to(torch.uint8)
