/**
 * The layer of hexagons on the map, drawn at once from one mesh. MapLibre's own layers would cut every cell into tiles, in
 * another thread and for every zoom, and keep a colour for each of its corners; here a new window of the same cells is a
 * picture with one pixel per cell.
 */

import { shapeKey } from './hexagons';
import { TILE, WORLD, meshOf, type Mesh } from './mesh';
import type { MapColours } from './palette';
import type { Hexagon } from './types';
import { PieceLayer, ROW, bytesOf, sharesOf, type Uniforms, type Vertices } from './webgl';

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

/** Pixels across an average cell. */
export const acrossOf = (resolution: number, zoom: number) => (ACROSS / Math.sqrt(7) ** resolution / PIXEL) * 2 ** zoom;

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

export class HexagonLayer extends PieceLayer {
  private mesh: Mesh = meshOf([]);
  private shapes = '';

  constructor(colours: () => MapColours) {
    super('hexagons', colours, { vertex: VERTEX, fragment: FRAGMENT, attribute: ['a_corner', 3] });
  }

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

  protected get count(): number {
    return this.mesh.triangles.length;
  }

  protected vertices(): Vertices {
    return { places: this.mesh.places, second: this.mesh.corners, triangles: this.mesh.triangles };
  }

  protected paint(gl: WebGL2RenderingContext, uniforms: Uniforms, zoom: number, middle: number): void {
    const colours = this.colours();
    gl.uniform1f(uniforms('phase'), middle % HATCHING);
    gl.uniform3f(uniforms('hatch'), ...sharesOf(colours.hatch));
    for (const { resolution, first, count } of this.mesh.parts) {
      const across = acrossOf(resolution, zoom);
      gl.uniform3f(uniforms('outline'), ...sharesOf(across < LEAST_OUTLINED ? colours.land : colours.edge));
      gl.uniform1f(uniforms('strength'), Math.min(Math.max((across - LEAST_SEEN) / (LEAST_APART - LEAST_SEEN), 0), 1));
      gl.drawElements(gl.TRIANGLES, count, gl.UNSIGNED_INT, 4 * first);
    }
  }
}
