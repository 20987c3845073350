/**
 * The layer of lines that carry the colours of their cells, drawn at once like the hexagons: a new window is a picture with one
 * pixel per piece. Every piece is a quad that the graphics processor widens, round at its ends so that pieces join.
 */

import { finestOf } from './hexagons';
import { isLarge } from './header';
import type { Look } from './hexagonlayer';
import { piecesOf, placesIn, type Line, type Pieces } from './lines';
import { WORLD, east, south, unitsOf } from './mesh';
import type { MapColours } from './palette';
import { PieceLayer, ROW, bytesOf, sharesOf, type Uniforms, type Vertices } from './webgl';

/** Pixels across a line at zoom 9, by which factor it grows with each zoom, and between which bounds. */
const [WIDTH, GROWTH, LEAST, MOST] = [2.4, 1.35, 1.8, 12];
/** How much wider they are on a screen on the wall. */
const LARGE = 1.8;
/** Where the width of a piece begins in the number that says which it is, and how many of its units a main street has. */
const [WIDTH_BITS, MAIN] = [24, 64];
/** Corners of the quad of a piece: end and side. */
const CORNERS = [[-1, -1], [-1, 1], [1, 1], [1, -1]] as const;

const VERTEX = `#version 300 es
uniform mat4 u_matrix;
uniform vec4 u_origin;
uniform uvec2 u_centre;
uniform float u_pixels;
uniform float u_width;
uniform mediump sampler2D u_looks;
in uvec3 a_place;
in vec4 a_half;
flat out vec4 v_look;
flat out float v_length;
flat out float v_width;
out vec2 v_at;
void main() {
  uint piece = a_place.z & ${2 ** WIDTH_BITS - 1}u;
  float wide = float(a_place.z >> ${WIDTH_BITS}u) / ${MAIN}.0 * u_width;
  v_look = texelFetch(u_looks, ivec2(piece % ${ROW}u, piece / ${ROW}u), 0);
  v_width = max(v_look.a > 0.0 ? wide : 0.4 * wide, 0.5);
  v_length = length(a_half.xy) * u_pixels;
  vec2 along = v_length > 0.0 ? normalize(a_half.xy) : vec2(1.0, 0.0);
  float reach = v_width + 1.5;
  v_at = vec2(a_half.z * (v_length + reach), a_half.w * reach);
  vec2 at = vec2(ivec2(a_place.xy - u_centre)) / ${WORLD}.0 + (along * v_at.x + vec2(-along.y, along.x) * v_at.y) / u_pixels;
  gl_Position = u_origin + u_matrix * vec4(at, 0.0, 0.0);
}`;

const FRAGMENT = `#version 300 es
precision highp float;
uniform vec3 u_ground;
uniform vec3 u_none;
uniform float u_ratio;
uniform float u_apart;
flat in vec4 v_look;
flat in float v_length;
flat in float v_width;
in vec2 v_at;
out vec4 colour;
void main() {
  float away = length(vec2(max(abs(v_at.x) - v_length, 0.0), v_at.y));
  // Never transparent, because pieces overlap where they join: a faint one has more of the ground's colour.
  vec3 inside = v_look.a > 0.0 ? mix(u_ground, v_look.rgb, v_look.a) : u_none;
  colour = vec4(u_apart > 0.0 ? u_ground : inside, 1.0) * clamp((v_width + u_apart - away) * u_ratio + 0.5, 0.0, 1.0);
}`;

export class LineLayer extends PieceLayer {
  private lines: Line[] = [];
  private resolution = -1;
  private pieces: Pieces = piecesOf([], 0);
  /** The cells for which `places` says where the pieces lie. */
  private among = '';
  private places: Int32Array = new Int32Array();
  private looks: Look[] = [];
  private classes: string[] = [];

  constructor(colours: () => MapColours) {
    super('lines', colours, { vertex: VERTEX, fragment: FRAGMENT, attribute: ['a_half', 4] });
  }

  get isEmpty(): boolean {
    return !this.lines.length;
  }

  /** Draw these lines from now on. */
  draw(lines: Line[]): void {
    [this.lines, this.resolution, this.pieces, this.isOldMesh] = [lines, -1, piecesOf([], 0), true];
    this.show(this.looks, this.classes);
  }

  /** Colour them as these cells from the next frame on. `classes`: colours of their classes. */
  show(looks: Look[], classes: string[]): void {
    [this.looks, this.classes] = [looks, classes];
    if (!this.lines.length) return;
    const finest = finestOf(looks.map(({ hexagon }) => hexagon));
    if (looks.length && finest !== this.resolution) {
      [this.resolution, this.among, this.isOldMesh] = [finest, '', true];
      this.pieces = piecesOf(this.lines, finest);
    }
    const cells = looks.map(({ hexagon }) => hexagon.cell);
    const among = cells.join();
    if (among !== this.among) [this.among, this.places] = [among, placesIn(this.pieces.cells, cells)];
    const colours = classes.map(bytesOf);
    this.pixels = new Uint8Array(Math.max(Math.ceil(this.places.length / ROW), 1) * ROW * 4);
    this.places.forEach((place, piece) => {
      const look = looks[place];
      const colour = look && !look.hatched ? colours[look.index] : undefined;
      if (!colour) return;
      this.pixels.set(colour, 4 * piece);
      this.pixels[4 * piece + 3] = Math.round(255 * look!.opacity);
    });
    this.isOldPicture = true;
  }

  /** Of each look with a piece, the middle of its longest one. */
  middles(): Map<number, [number, number]> {
    const [best, longest] = [new Map<number, [number, number]>(), new Map<number, number>()];
    this.places.forEach((place, piece) => {
      const [x0, y0, x1, y1] = this.pieces.ends.subarray(4 * piece, 4 * piece + 4) as unknown as [number, number, number, number];
      const length = Math.hypot(x1 - x0, y1 - y0);
      if (place < 0 || length <= (longest.get(place) ?? -1)) return;
      longest.set(place, length);
      best.set(place, [(x0 + x1) / 2, (y0 + y1) / 2]);
    });
    return best;
  }

  protected get count(): number {
    return this.pieces.cells.length;
  }

  protected paint(gl: WebGL2RenderingContext, uniforms: Uniforms, zoom: number): void {
    const colours = this.colours();
    gl.uniform1f(uniforms('width'), Math.min(Math.max(WIDTH * GROWTH ** (zoom - 9), LEAST), MOST) * (isLarge() ? LARGE : 1) / 2);
    gl.uniform3f(uniforms('ground'), ...sharesOf(colours.land));
    gl.uniform3f(uniforms('none'), ...sharesOf(colours.unknown));
    // First, wider, what sets lines off from the hexagons: of one piece it would cover the ends of others.
    for (const apart of [1, 0]) {
      gl.uniform1f(uniforms('apart'), apart);
      gl.drawElements(gl.TRIANGLES, 6 * this.count, gl.UNSIGNED_INT, 0);
    }
  }

  protected vertices(): Vertices {
    const { ends, widths, cells } = this.pieces;
    const [places, halves, triangles] = [new Uint32Array(12 * cells.length), new Float32Array(16 * cells.length), new Uint32Array(6 * cells.length)];
    for (let piece = 0; piece < cells.length; piece += 1) {
      const [x0, y0, x1, y1] = [east(ends[4 * piece]!), south(ends[4 * piece + 1]!), east(ends[4 * piece + 2]!), south(ends[4 * piece + 3]!)];
      const numbered = piece + 2 ** WIDTH_BITS * Math.round(MAIN * widths[piece]!);
      CORNERS.forEach((corner, at) => {
        places.set([unitsOf((x0 + x1) / 2), unitsOf((y0 + y1) / 2), numbered], 12 * piece + 3 * at);
        halves.set([(x1 - x0) / 2, (y1 - y0) / 2, ...corner], 16 * piece + 4 * at);
      });
      triangles.set([0, 1, 2, 0, 2, 3].map((at) => 4 * piece + at), 6 * piece);
    }
    return { places, second: halves, triangles };
  }
}
