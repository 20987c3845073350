/** What the page says, in the reader's language: one file of texts for each language, all with the same keys. */

import en from './texts/en.json';

type Plural = Partial<Record<Intl.LDMLPluralRule, string>>;
type Texts = Record<TextKey, string | Plural>;
export type TextKey = keyof typeof en;
export type Values = Record<string, string | number>;

const texts: Texts = en;

/** The locale of dates, and the language of plurals. */
export const locale = 'en-GB';

/** A text with its `{placeholders}` filled in; a text with plural forms is chosen by `count`. */
export function say(key: TextKey, values: Values = {}): string {
  const entry = texts[key];
  const form = typeof entry === 'string' ? entry : plural(entry, Number(values.count));
  return form.replaceAll(/\{(\w+)\}/g, (_, name: string) => String(values[name] ?? ''));
}

const plural = (forms: Plural, count: number) => forms[new Intl.PluralRules(locale).select(count)] ?? forms.other ?? '';

/** A text whose key is put together, or null where there is none of that key. */
export const sayIfKnown = (key: string): string | null => (key in texts ? say(key as TextKey) : null);

/** A number with so many decimals, written as the language does. */
export const decimals = (value: number, digits: number) => value.toFixed(digits).replace('.', say('decimal'));

/** Fill the texts of index.html: `data-text` names the text of an element, `data-label` that of its aria-label. */
export function fillPage(root: ParentNode = document): void {
  for (const element of root.querySelectorAll<HTMLElement>('[data-text]')) {
    element.textContent = say(element.dataset.text as TextKey);
  }
  for (const element of root.querySelectorAll<HTMLElement>('[data-label]')) {
    element.setAttribute('aria-label', say(element.dataset.label as TextKey));
  }
}
