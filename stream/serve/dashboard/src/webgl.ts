/** What the layers that are drawn here share: their programs, colours, and where their places are on the screen. */

import { MercatorCoordinate, type CustomLayerInterface, type CustomRenderMethodInput, type Map as MapLibre } from 'maplibre-gl';
import type { MapColours } from './palette';
import { TILE, WORLD, unitsOf } from './mesh';

type Matrix = ArrayLike<number>;

/** A program with its attributes in that order. A graphics processor that is lost meanwhile has none; it will be asked again. */
function linked(gl: WebGL2RenderingContext, vertex: string, fragment: string, attributes: string[]): WebGLProgram {
  const program = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]] as const) {
    const shader = gl.createShader(kind)!;
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
    gl.deleteShader(shader);
  }
  attributes.forEach((name, at) => gl.bindAttribLocation(program, at, name));
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost()) throw new Error(gl.getProgramInfoLog(program) ?? '');
  return program;
}

/** Where a program has its uniform of that name, without the "u_" with which all begin. */
export type Uniforms = (name: string) => WebGLUniformLocation | null;

/** Red, green and blue up to 255 of "#rrggbb". */
export function bytesOf(colour: string): [number, number, number] {
  const number = parseInt(colour.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

/** The same up to 1. */
export const sharesOf = (colour: string) => bytesOf(colour).map((part) => part / 255) as [number, number, number];

/**
 * Where a place of the world is drawn, by the matrix of the map. What is drawn is told from there: a graphics processor computes
 * with 24 bits, which are too few for places in the world close up.
 */
const drawnAt = (matrix: Matrix, x: number, y: number) =>
  [0, 1, 2, 3].map((row) => matrix[row]! * x + matrix[4 + row]! * y + matrix[12 + row]!) as [number, number, number, number];

/** Pieces in a row of the picture of their looks. */
export const ROW = 1024;

/** What the graphics processor holds of a layer: its vertices' places, the second attribute of each, and its triangles. */
interface Held {
  program: WebGLProgram;
  vertices: WebGLVertexArrayObject;
  buffers: [places: WebGLBuffer, second: WebGLBuffer, triangles: WebGLBuffer];
  looks: WebGLTexture;
}

export interface Vertices {
  places: Uint32Array;
  second: Float32Array;
  triangles: Uint32Array;
}

/** A layer of pieces that is drawn at once: of each vertex three integers and some numbers, and a picture with one pixel a piece. */
export abstract class PieceLayer implements CustomLayerInterface {
  readonly type = 'custom';
  isShown = true;
  private map: MapLibre | null = null;
  private held: Held | null = null;
  protected pixels = new Uint8Array();
  /** What the graphics processor holds is not what is wanted. */
  protected isOldMesh = true;
  protected isOldPicture = true;

  /** `attribute`: the second one, and how many numbers it has. */
  constructor(
    readonly id: string,
    protected readonly colours: () => MapColours,
    private readonly shaders: { vertex: string; fragment: string; attribute: [name: string, size: number] },
  ) {}

  /** How many pieces there are to draw, and all their triangles. */
  protected abstract readonly count: number;
  protected abstract vertices(): Vertices;

  /** Set the uniforms of its own, and draw the triangles. `middle`: pixels from the world's corner to the middle, east and south. */
  protected abstract paint(gl: WebGL2RenderingContext, uniforms: Uniforms, zoom: number, middle: number): void;

  onAdd(map: MapLibre, gl: WebGL2RenderingContext): void {
    this.map = map;
    const [name, size] = this.shaders.attribute;
    const program = linked(gl, this.shaders.vertex, this.shaders.fragment, ['a_place', name]);
    const buffers = [gl.createBuffer(), gl.createBuffer(), gl.createBuffer()] as Held['buffers'];
    const vertices = gl.createVertexArray();
    gl.bindVertexArray(vertices);
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers[0]);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribIPointer(0, 3, gl.UNSIGNED_INT, 0, 0);
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers[1]);
    gl.enableVertexAttribArray(1);
    gl.vertexAttribPointer(1, size, gl.FLOAT, false, 0, 0);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, buffers[2]);
    gl.bindVertexArray(null);
    this.held = { program, vertices, buffers, looks: gl.createTexture() };
    [this.isOldMesh, this.isOldPicture] = [true, true];
  }

  onRemove(_: MapLibre, gl: WebGL2RenderingContext): void {
    if (!this.held) return;
    gl.deleteProgram(this.held.program);
    gl.deleteVertexArray(this.held.vertices);
    for (const buffer of this.held.buffers) gl.deleteBuffer(buffer);
    gl.deleteTexture(this.held.looks);
    [this.map, this.held] = [null, null];
  }

  render(gl: WebGL2RenderingContext, { defaultProjectionData: { mainMatrix } }: CustomRenderMethodInput): void {
    const { map, held } = this;
    if (!map || !held || !this.isShown || !this.count) return;
    gl.useProgram(held.program);
    gl.bindVertexArray(held.vertices);
    gl.bindTexture(gl.TEXTURE_2D, held.looks);
    if (this.isOldMesh) this.sendMesh(gl, held, this.vertices());
    if (this.isOldPicture) this.sendPicture(gl);
    const { x, y } = MercatorCoordinate.fromLngLat(map.getCenter());
    const pixels = TILE * 2 ** map.getZoom();
    const uniforms: Uniforms = (name) => gl.getUniformLocation(held.program, `u_${name}`);
    gl.uniformMatrix4fv(uniforms('matrix'), false, mainMatrix as Float32Array);
    gl.uniform4f(uniforms('origin'), ...drawnAt(mainMatrix, x, y));
    gl.uniform2ui(uniforms('centre'), unitsOf(x), Math.floor(y * WORLD));
    gl.uniform1f(uniforms('pixels'), pixels);
    gl.uniform1f(uniforms('ratio'), map.getPixelRatio());
    gl.uniform1i(uniforms('looks'), 0);
    this.paint(gl, uniforms, map.getZoom(), (x + y) * pixels);
    gl.bindVertexArray(null);
  }

  private sendMesh(gl: WebGL2RenderingContext, { buffers }: Held, { places, second, triangles }: Vertices): void {
    [places, second].forEach((numbers, at) => {
      gl.bindBuffer(gl.ARRAY_BUFFER, buffers[at]!);
      gl.bufferData(gl.ARRAY_BUFFER, numbers, gl.STATIC_DRAW);
    });
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, triangles, gl.STATIC_DRAW);
    this.isOldMesh = false;
  }

  private sendPicture(gl: WebGL2RenderingContext): void {
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.NEAREST);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, gl.NEAREST);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, ROW, this.pixels.length / (4 * ROW), 0, gl.RGBA, gl.UNSIGNED_BYTE, this.pixels);
    this.isOldPicture = false;
  }
}
