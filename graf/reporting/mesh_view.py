"""A mesh inside a page: its vertices as text, and a script of our own that turns it with WebGL. Nothing is fetched."""

import base64
from html import escape
from pathlib import Path

import numpy as np
import trimesh

LARGEST = 32767  # of a coordinate, as a 16-bit integer
SCRIPT = """
const VERTEX = `#version 300 es
in vec3 place; in vec4 colour; uniform mat3 turned; out vec3 at, tone;
void main() {  // seen from 3 units away, of which the object's farthest point is 1 from the middle
  at = turned * place; tone = colour.rgb;
  float far = 3.0 - at.z;
  gl_Position = vec4(2.6 * at.xy, 1.5 * far - 2.5, far);
}`;
const FRAGMENT = `#version 300 es
precision highp float;
in vec3 at, tone; uniform bool plain; out vec4 colour;
void main() {
  vec3 normal = normalize(cross(dFdx(at), dFdy(at)));
  float light = 0.25 + 0.75 * abs(dot(normal, normalize(vec3(-0.3, 0.5, 0.8))));
  colour = vec4(plain ? vec3(light) : tone, 1);
}`;
for (const box of document.querySelectorAll(".mesh")) {
  const canvas = box.querySelector("canvas"), plain = box.querySelector("input");
  const gl = canvas.getContext("webgl2", {preserveDrawingBuffer: true});
  if (!gl) {
    box.querySelector(".state").textContent = "This browser cannot draw it (no WebGL 2); the file named below opens elsewhere.";
    canvas.hidden = plain.parentElement.hidden = true;
    continue;
  }
  const program = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  gl.useProgram(program);
  const bytes = name => Uint8Array.from(atob(box.dataset[name]), letter => letter.charCodeAt(0));
  const faces = new Uint32Array(bytes("faces").buffer);
  const fill = (target, data) => { gl.bindBuffer(target, gl.createBuffer()); gl.bufferData(target, data, gl.STATIC_DRAW); };
  fill(gl.ARRAY_BUFFER, bytes("vertices"));
  fill(gl.ELEMENT_ARRAY_BUFFER, faces);
  for (const [name, size, type, start] of [["place", 3, gl.SHORT, 0], ["colour", 4, gl.UNSIGNED_BYTE, 8]]) {
    const index = gl.getAttribLocation(program, name);
    if (index < 0) continue;
    gl.enableVertexAttribArray(index);
    gl.vertexAttribPointer(index, size, type, true, 12, start);
  }
  gl.enable(gl.DEPTH_TEST);
  let azimuth = 0.9, elevation = 0.4;
  const draw = () => {
    const [s, c, u, v] = [Math.sin(azimuth), Math.cos(azimuth), Math.sin(elevation), Math.cos(elevation)];
    const columns = [-s, -u * c, v * c, c, -u * s, v * s, 0, v, u];  // of the world's x, y and z; z is up
    gl.uniformMatrix3fv(gl.getUniformLocation(program, "turned"), false, columns);
    gl.uniform1i(gl.getUniformLocation(program, "plain"), plain.checked);
    gl.clearColor(1, 1, 1, 1);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.drawElements(gl.TRIANGLES, faces.length, gl.UNSIGNED_INT, 0);
  };
  const turn = (right, up) => {
    azimuth -= right;
    elevation = Math.max(-1.5, Math.min(1.5, elevation + up));
    draw();
  };
  canvas.addEventListener("pointerdown", event => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", event => event.buttons && turn(event.movementX / 120, event.movementY / 120));
  const ARROWS = {ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1]};
  canvas.addEventListener("keydown", event => {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    turn(...ARROWS[event.key]);
  });
  plain.addEventListener("change", draw);
  draw();
}
"""


def mesh_html(mesh: trimesh.Trimesh, name: str) -> str:
    """The mesh of the file of that name as an element that SCRIPT draws once the page is read.

    12 bytes a vertex: coordinates as 16-bit integers from -1 to 1 around the middle of the mesh, two bytes of nothing, and its
    colour (RGBA). 12 bytes a face.
    """
    vertices = np.zeros(len(mesh.vertices), dtype=[("place", "<i2", 3), ("nothing", "<i2"), ("colour", "u1", 4)])
    places = mesh.vertices - mesh.bounds.mean(0)
    vertices["place"] = np.round(LARGEST * places / max(np.linalg.norm(places, axis=1).max(), 1e-12))
    is_textured = isinstance(mesh.visual, trimesh.visual.TextureVisuals)
    vertices["colour"] = (mesh.visual.to_color() if is_textured else mesh.visual).vertex_colors
    parts = {"vertices": vertices.tobytes(), "faces": mesh.faces.astype("<u4").tobytes()}
    data = " ".join(f'data-{name}="{base64.b64encode(part).decode()}"' for name, part in parts.items())
    return (
        f'<figure class="mesh" {data}>\n<canvas width="720" height="720" tabindex="0"></canvas>\n'
        '<p class="screen state">Drag it, or use the arrow keys.</p>\n'
        '<label class="screen"><input type="checkbox"> shape without colours</label>\n'
        f"<figcaption>The surface of one object: {len(mesh.faces):,} faces. In the run's folder: {escape(name)}</figcaption>"
        "</figure>\n"
    )


def read_mesh(path: Path) -> trimesh.Trimesh | None:
    """The mesh of a file, None where it cannot be read or has no faces."""
    try:
        mesh = trimesh.load(path, force="mesh", process=False)
    except (OSError, ValueError, KeyError, IndexError, TypeError):  # a file cut short, or of another kind
        return None
    return mesh if isinstance(mesh, trimesh.Trimesh) and len(mesh.faces) and np.isfinite(mesh.vertices).all() else None
