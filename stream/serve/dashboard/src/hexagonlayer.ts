/**
 * The layer of hexagons on the map, drawn at once from one mesh. MapLibre's own layers would cut every cell into tiles, in
 * another thread and for every zoom, and keep a colour for each of its corners; here a new window of the same cells is a
 * picture with one pixel per cell.
 */

import { MercatorCoordinate, type CustomLayerInterface, type CustomRenderMethodInput, type Map as MapLibre } from 'maplibre-gl';
import { shapeKey } from './hexagons';
import { meshOf, type Mesh } from './mesh';
import type { MapColours } from './palette';
import type { Hexagon } from './types';
import { bytesOf, drawnAt, linked, sharesOf, uniformsOf, type Uniforms } from './webgl';
import { TILE, WORLD, unitsOf } from './world';

/** How one hexagon looks: its class (-1: none known), its opacity (0: not drawn), whether it is hatched. */
export interface Look {
  hexagon: Hexagon;
  index: number;
  opacity: number;
  hatched: boolean;
}

/** Cells of fewer pixels have lines of the land's colour between them: dark ones would be a grid that hides the colours. */
const LEAST_OUTLINED = 16;
/** Of fewer pixels, those lines are fainter, until none is left: they would hide the cells. */
const [LEAST_APART, LEAST_SEEN] = [6, 2];
/** Kilometres across an average cell of resolution 0 (H3), and along the equator on a pixel at zoom 0. */
const ACROSS = 2219;
const PIXEL = 40_075 / TILE;
/** Pixels from one line of the hatching to the next one along a parallel. */
const HATCHING = 8;
/** In place of its opacity, what says that a cell is hatched. */
const HATCHED = 255;
/** Cells in a row of the picture of their looks. */
const ROW = 1024;

/** Pixels across an average cell. */
export const acrossOf = (resolution: number, zoom: number) => (ACROSS / Math.sqrt(7) ** resolution / PIXEL) * 2 ** zoom;

/** How strong the lines between cells of so many pixels are. */
const strengthOf = (across: number) => Math.min(Math.max((across - LEAST_SEEN) / (LEAST_APART - LEAST_SEEN), 0), 1);

const VERTEX = `#version 300 es
uniform mat4 u_matrix;
uniform vec4 u_origin;
uniform uvec2 u_centre;
uniform float u_pixels;
uniform float u_phase;
uniform mediump sampler2D u_looks;
in uvec3 a_place;
in vec3 a_corner;
flat out vec4 v_look;
out float v_inside;
out float v_along;
void main() {
  // Of the copies of the world, that in which the cell is nearest to the middle of the map.
  vec2 at = vec2(ivec2(a_place.xy - u_centre)) / ${WORLD}.0 + a_corner.xy;
  gl_Position = u_origin + u_matrix * vec4(at, 0.0, 0.0);
  v_look = texelFetch(u_looks, ivec2(a_place.z % ${ROW}u, a_place.z / ${ROW}u), 0);
  v_inside = a_corner.z;
  v_along = (at.x + at.y) * u_pixels + u_phase;
}`;

const FRAGMENT = `#version 300 es
precision highp float;
uniform vec3 u_outline;
uniform float u_strength;
uniform vec3 u_hatch;
uniform float u_ratio;
flat in vec4 v_look;
in float v_inside;
in float v_along;
out vec4 colour;
void main() {
  if (v_look.a == 0.0) discard;
  if (v_look.a < 1.0) {
    float inwards = v_inside / max(length(vec2(dFdx(v_inside), dFdy(v_inside))), 1e-6) / u_ratio;
    // Less transparent than the cell, so that it is seen on a faint one.
    float line = u_strength * (1.0 - smoothstep(0.1, 0.9, inwards)) * v_look.a * (2.0 - v_look.a);
    colour = mix(vec4(v_look.rgb, 1.0) * v_look.a, vec4(u_outline, 1.0), line);
  } else {
    float line = abs(fract(v_along / ${HATCHING}.0) - 0.5) * ${HATCHING}.0 * 0.7071;
    colour = vec4(u_hatch, 1.0) * 0.8 * clamp((0.4 - line) * u_ratio + 0.5, 0.0, 1.0);
  }
}`;

const UNIFORMS = ['matrix', 'origin', 'centre', 'pixels', 'phase', 'looks', 'outline', 'strength', 'hatch', 'ratio'] as const;
const [PLACE, CORNER] = [0, 1];

/** What the graphics processor holds of the layer. */
interface Held {
  program: WebGLProgram;
  uniforms: Uniforms<(typeof UNIFORMS)[number]>;
  vertices: WebGLVertexArrayObject;
  places: WebGLBuffer;
  corners: WebGLBuffer;
  triangles: WebGLBuffer;
  looks: WebGLTexture;
}

const NO_MESH = meshOf([]);

export class HexagonLayer implements CustomLayerInterface {
  readonly id = 'hexagons';
  readonly type = 'custom';
  isShown = true;
  private map: MapLibre | null = null;
  private held: Held | null = null;
  private mesh: Mesh = NO_MESH;
  private shapes = '';
  private pixels = new Uint8Array();
  /** What the graphics processor holds is not what is wanted. */
  private isOldMesh = true;
  private isOldPicture = true;

  constructor(private readonly colours: () => MapColours) {}

  /** Draw these cells from the next frame on. `classes`: colours of their classes. */
  show(looks: Look[], classes: string[]): void {
    const shapes = looks.map(({ hexagon }) => shapeKey(hexagon)).join();
    if (shapes !== this.shapes) {
      this.shapes = shapes;
      this.mesh = meshOf(looks.map(({ hexagon }) => hexagon));
      this.isOldMesh = true;
    }
    const [colours, unknown] = [classes.map(bytesOf), bytesOf(this.colours().unknown)];
    this.pixels = new Uint8Array(Math.ceil(looks.length / ROW) * ROW * 4);
    looks.forEach(({ index, opacity, hatched }, cell) => {
      this.pixels.set(colours[index] ?? unknown, 4 * cell);
      this.pixels[4 * cell + 3] = hatched ? HATCHED : Math.round(254 * opacity);
    });
    this.isOldPicture = true;
  }

  onAdd(map: MapLibre, gl: WebGL2RenderingContext): void {
    this.map = map;
    const program = linked(gl, VERTEX, FRAGMENT, ['a_place', 'a_corner']);
    const [places, corners, triangles] = [gl.createBuffer(), gl.createBuffer(), gl.createBuffer()];
    const vertices = gl.createVertexArray();
    gl.bindVertexArray(vertices);
    gl.bindBuffer(gl.ARRAY_BUFFER, places);
    gl.enableVertexAttribArray(PLACE);
    gl.vertexAttribIPointer(PLACE, 3, gl.UNSIGNED_INT, 0, 0);
    gl.bindBuffer(gl.ARRAY_BUFFER, corners);
    gl.enableVertexAttribArray(CORNER);
    gl.vertexAttribPointer(CORNER, 3, gl.FLOAT, false, 0, 0);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, triangles);
    gl.bindVertexArray(null);
    this.held = { program, uniforms: uniformsOf(gl, program, UNIFORMS), vertices, places, corners, triangles, looks: gl.createTexture() };
    [this.isOldMesh, this.isOldPicture] = [true, true];
  }

  onRemove(_: MapLibre, gl: WebGL2RenderingContext): void {
    if (!this.held) return;
    const { program, vertices, places, corners, triangles, looks } = this.held;
    gl.deleteProgram(program);
    gl.deleteVertexArray(vertices);
    for (const buffer of [places, corners, triangles]) gl.deleteBuffer(buffer);
    gl.deleteTexture(looks);
    [this.map, this.held] = [null, null];
  }

  render(gl: WebGL2RenderingContext, { defaultProjectionData: { mainMatrix } }: CustomRenderMethodInput): void {
    const { map, held, mesh } = this;
    if (!map || !held || !this.isShown || !mesh.triangles.length) return;
    const { program, uniforms, vertices } = held;
    gl.useProgram(program);
    gl.bindVertexArray(vertices);
    gl.bindTexture(gl.TEXTURE_2D, held.looks);
    if (this.isOldMesh) this.sendMesh(gl, held);
    if (this.isOldPicture) this.sendPicture(gl);
    const { x, y } = MercatorCoordinate.fromLngLat(map.getCenter());
    const [east, south] = [unitsOf(x), Math.floor(y * WORLD)];
    const pixels = TILE * 2 ** map.getZoom();
    const colours = this.colours();
    gl.uniformMatrix4fv(uniforms.matrix, false, mainMatrix as Float32Array);
    gl.uniform4f(uniforms.origin, ...drawnAt(mainMatrix, x, y));
    gl.uniform2ui(uniforms.centre, east, south);
    gl.uniform1f(uniforms.pixels, pixels);
    gl.uniform1f(uniforms.phase, ((x + y) * pixels) % HATCHING);
    gl.uniform1f(uniforms.ratio, map.getPixelRatio());
    gl.uniform3f(uniforms.hatch, ...sharesOf(colours.hatch));
    gl.uniform1i(uniforms.looks, 0);
    for (const { resolution, first, count } of mesh.parts) {
      const across = acrossOf(resolution, map.getZoom());
      gl.uniform3f(uniforms.outline, ...sharesOf(across < LEAST_OUTLINED ? colours.land : colours.edge));
      gl.uniform1f(uniforms.strength, strengthOf(across));
      gl.drawElements(gl.TRIANGLES, count, gl.UNSIGNED_INT, 4 * first);
    }
    gl.bindVertexArray(null);
  }

  private sendMesh(gl: WebGL2RenderingContext, { places, corners }: Held): void {
    gl.bindBuffer(gl.ARRAY_BUFFER, places);
    gl.bufferData(gl.ARRAY_BUFFER, this.mesh.places, gl.STATIC_DRAW);
    gl.bindBuffer(gl.ARRAY_BUFFER, corners);
    gl.bufferData(gl.ARRAY_BUFFER, this.mesh.corners, gl.STATIC_DRAW);
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, this.mesh.triangles, gl.STATIC_DRAW);
    this.isOldMesh = false;
  }

  private sendPicture(gl: WebGL2RenderingContext): void {
    const rows = this.pixels.length / (4 * ROW);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, ROW, rows, 0, gl.RGBA, gl.UNSIGNED_BYTE, this.pixels);
    this.isOldPicture = false;
  }
}
