/** The layer of the ground's lines. As lines of MapLibre they would be cut into tiles, and each kind needs a program of its own. */

import type { CustomLayerInterface, CustomRenderMethodInput, Map as MapLibre } from 'maplibre-gl';
import { VERTEX_NUMBERS, gridOf, type Grid } from './grid';
import type { MapColours } from './palette';
import type { Box } from './types';
import { drawnAt, linked, sharesOf, uniformsOf, type Uniforms } from './webgl';

/** Pixels: width of a line. */
const WIDTH = 0.7;

const VERTEX = `#version 300 es
uniform mat4 u_matrix;
uniform vec4 u_origin;
uniform vec2 u_size;
uniform float u_width;
in vec4 a_line;
out float v_across;
void main() {
  // Half a pixel on both sides for what of it a pixel holds.
  float reach = u_width / 2.0 + 0.5;
  gl_Position = u_origin + u_matrix * vec4(a_line.xy, 0.0, 0.0);
  gl_Position.xy += a_line.zw * 2.0 * reach / u_size * gl_Position.w;
  v_across = (a_line.z + a_line.w) * reach;
}`;

const FRAGMENT = `#version 300 es
precision highp float;
uniform vec3 u_colour;
uniform float u_width;
in float v_across;
out vec4 colour;
void main() {
  colour = vec4(u_colour, 1.0) * clamp(u_width / 2.0 + 0.5 - abs(v_across), 0.0, 1.0);
}`;

const UNIFORMS = ['matrix', 'origin', 'size', 'width', 'colour'] as const;

/** What the graphics processor holds of the layer. */
interface Held {
  program: WebGLProgram;
  uniforms: Uniforms<(typeof UNIFORMS)[number]>;
  vertices: WebGLVertexArrayObject;
  buffer: WebGLBuffer;
}

export class GridLayer implements CustomLayerInterface {
  readonly id = 'grid';
  readonly type = 'custom';
  private readonly grid: Grid;
  private map: MapLibre | null = null;
  private held: Held | null = null;

  constructor(box: Box, private readonly colours: () => MapColours) {
    this.grid = gridOf(box);
  }

  onAdd(map: MapLibre, gl: WebGL2RenderingContext): void {
    this.map = map;
    const program = linked(gl, VERTEX, FRAGMENT, ['a_line']);
    const [vertices, buffer] = [gl.createVertexArray(), gl.createBuffer()];
    const bytes = Float32Array.BYTES_PER_ELEMENT;
    gl.bindVertexArray(vertices);
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, this.grid.vertices, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 4, gl.FLOAT, false, VERTEX_NUMBERS * bytes, 0);
    gl.bindVertexArray(null);
    this.held = { program, uniforms: uniformsOf(gl, program, UNIFORMS), vertices, buffer };
  }

  onRemove(_: MapLibre, gl: WebGL2RenderingContext): void {
    if (!this.held) return;
    gl.deleteProgram(this.held.program);
    gl.deleteVertexArray(this.held.vertices);
    gl.deleteBuffer(this.held.buffer);
    [this.map, this.held] = [null, null];
  }

  render(gl: WebGL2RenderingContext, { defaultProjectionData: { mainMatrix } }: CustomRenderMethodInput): void {
    const { map, held, grid } = this;
    if (!map || !held) return;
    const { uniforms } = held;
    const [zoom, colours, { clientWidth, clientHeight }] = [map.getZoom(), this.colours(), map.getCanvas()];
    gl.useProgram(held.program);
    gl.bindVertexArray(held.vertices);
    gl.uniformMatrix4fv(uniforms.matrix, false, mainMatrix as Float32Array);
    gl.uniform4f(uniforms.origin, ...drawnAt(mainMatrix, ...grid.middle));
    gl.uniform2f(uniforms.size, clientWidth, clientHeight);
    gl.uniform3f(uniforms.colour, ...sharesOf(colours.grid));
    gl.uniform1f(uniforms.width, WIDTH);
    for (const { from, to, first, count } of grid.parts) {
      if (zoom < from || zoom >= to) continue;
      gl.drawArrays(gl.TRIANGLES, first, count);
    }
    gl.bindVertexArray(null);
  }
}
