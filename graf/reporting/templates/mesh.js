// Draws the meshes of a page and turns them where they are dragged; needs WebGL 2, and nothing else.
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
