import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { defineConfig, type Plugin } from 'vite';

const here = import.meta.dirname;
const sha256 = (data: string | Uint8Array) => createHash('sha256').update(data).digest('hex');

/** Every source of the dashboard, by path; what a build is made from besides the packages of the lock file. */
function sources(): string[] {
  const top = ['index.html', 'package.json', 'package-lock.json', 'tsconfig.json', 'vite.config.ts'];
  const below = readdirSync(join(here, 'src'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name).slice(here.length + 1));
  return [...top, ...below].sort();
}

/** Writes build.json: digests of the sources and of the built files, so that a stale bundle is found without Node. */
function manifest(): Plugin {
  return {
    name: 'hexveil-manifest',
    apply: 'build',
    enforce: 'post',
    // After Vite's own last changes of what imports at run time.
    generateBundle: {
      order: 'post',
      handler(_, bundle) {
        const list = sources().map((path) => `${sha256(readFileSync(join(here, path)))}  ${path}\n`).join('');
        const files = Object.fromEntries(
          Object.values(bundle)
            .map((file): [string, string] => [file.fileName, sha256(file.type === 'chunk' ? file.code : file.source)])
            .sort(([a], [b]) => (a < b ? -1 : 1)),
        );
        const source = JSON.stringify({ sources: sha256(list), files }, null, 1) + '\n';
        this.emitFile({ type: 'asset', fileName: 'build.json', source });
      },
    },
  };
}

export default defineConfig({
  base: './',
  plugins: [manifest()],
  build: {
    outDir: '../static',
    emptyOutDir: true,
    target: 'es2023',
    assetsInlineLimit: 0,
    // The page names what the script imports at once, so that it comes with the script instead of after it.
    modulePreload: { polyfill: false, resolveDependencies: (_, found, { hostType }) => (hostType === 'html' ? found : []) },
    chunkSizeWarningLimit: 3000,
    license: { fileName: 'licences.md' },
  },
});
