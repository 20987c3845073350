/** What the page says, in the reader's language: one file of texts for each language, all with the same keys. */

import en from './texts/en.json';
import { keep, recall } from './kept';
import { otherValue } from './units';

type Plural = Partial<Record<Intl.LDMLPluralRule, string>>;
type Texts = Record<TextKey, string | Plural>;
export type TextKey = keyof typeof en;
export type Values = Record<string, string | number>;

const KEY = 'hexveil-language';

/** Every language, by its code. A file that lacks a text does not compile; only the one that is spoken is loaded. */
const LOADERS = {
  en: async (): Promise<{ default: Texts }> => ({ default: en }),
  de: (): Promise<{ default: Texts }> => import('./texts/de.json'),
  es: (): Promise<{ default: Texts }> => import('./texts/es.json'),
  fr: (): Promise<{ default: Texts }> => import('./texts/fr.json'),
  pl: (): Promise<{ default: Texts }> => import('./texts/pl.json'),
};
export type Language = keyof typeof LOADERS;
export const LANGUAGES = Object.keys(LOADERS) as Language[];

const isLanguage = (code: string): code is Language => Object.hasOwn(LOADERS, code);

/** The reader's choice; until there is one, the first language of the browser that has texts. */
function preferred(): Language {
  const wanted = [recall(KEY) ?? '', ...(globalThis.navigator?.languages ?? [])].map((tag) => tag.toLowerCase().split('-')[0]!);
  return wanted.find(isLanguage) ?? 'en';
}

export const language: Language = preferred();

/** Speak another language from the next visit on. */
export const remember = (wanted: string) => keep(KEY, wanted);

/** English where the file of the language cannot be read. */
const { default: texts } = await LOADERS[language]().catch(LOADERS.en);

/** The locale of dates, and the language of plurals. */
export const locale = say('language.locale');

/**
 * A text with its `{placeholders}` filled in; a text with plural forms is chosen by `count`. Where another value than a speed is
 * on display, the text of that key with `.value` is said, if there is one.
 */
export function say(key: TextKey, given: Values = {}): string {
  const other = otherValue();
  const values = other ? { name: other.name, ...given } : given;
  const entry = (other && (texts as Record<string, string | undefined>)[`${key}.value`]) || texts[key];
  const form = typeof entry === 'string' ? entry : plural(entry, Number(values.count));
  return form.replaceAll(/\{(\w+)\}/g, (_, name: string) => String(values[name] ?? ''));
}

const plural = (forms: Plural, count: number) => forms[new Intl.PluralRules(locale).select(count)] ?? forms.other ?? '';

/** A text whose key is put together, or null where there is none of that key. */
export const sayIfKnown = (key: string): string | null => (key in texts ? say(key as TextKey) : null);

/** A number with so many decimals, written as the language does, and thousands apart. */
export const decimals = (value: number, digits: number) =>
  value.toFixed(digits).replace(/\B(?<!\.\d*)(?=(\d{3})+(?!\d))/g, '\u202f').replace('.', say('decimal'));

/** A number as it is, without the digits that floating point adds. */
export const plain = (number: number, digits = 12) => String(Number(number.toPrecision(digits))).replace('.', say('decimal'));

/** The attribute that `data-label`, `data-title` and `data-placeholder` of index.html name the text of. */
const NAMED = { label: 'aria-label', title: 'title', placeholder: 'placeholder' } as const;

/** Fill the texts of index.html: `data-text` names the text of an element. */
export function fillPage(root: ParentNode = document): void {
  document.documentElement.lang = language;
  document.documentElement.dir = say('language.direction');
  for (const element of root.querySelectorAll<HTMLElement>('[data-text]')) {
    element.textContent = say(element.dataset.text as TextKey);
  }
  for (const [name, attribute] of Object.entries(NAMED)) {
    for (const element of root.querySelectorAll<HTMLElement>(`[data-${name}]`)) element.setAttribute(attribute, say(element.dataset[name] as TextKey));
  }
}
