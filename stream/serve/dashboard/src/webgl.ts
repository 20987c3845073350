/** What the layers that are drawn here share: their programs, colours, and where their places are on the screen. */

type Matrix = ArrayLike<number>;

/** A program with its attributes in that order. A graphics processor that is lost meanwhile has none; it will be asked again. */
export function linked(gl: WebGL2RenderingContext, vertex: string, fragment: string, attributes: string[]): WebGLProgram {
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

export type Uniforms<Name extends string> = Record<Name, WebGLUniformLocation | null>;

/** Where the program has its uniforms, which begin with "u_". */
export const uniformsOf = <Name extends string>(gl: WebGL2RenderingContext, program: WebGLProgram, names: readonly Name[]) =>
  Object.fromEntries(names.map((name) => [name, gl.getUniformLocation(program, `u_${name}`)])) as Uniforms<Name>;

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
export const drawnAt = (matrix: Matrix, x: number, y: number) =>
  [0, 1, 2, 3].map((row) => matrix[row]! * x + matrix[4 + row]! * y + matrix[12 + row]!) as [number, number, number, number];
