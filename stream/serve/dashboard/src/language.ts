/** The picker of languages. */

import { byId, make } from './dom';
import { LANGUAGES, language, remember } from './texts';

/** Fill the picker; another choice loads the page again, with the view in the address. */
export function setUpLanguage(): void {
  const picker = byId<HTMLSelectElement>('language');
  for (const code of LANGUAGES) {
    const name = new Intl.DisplayNames(code, { type: 'language' }).of(code) ?? code;
    picker.append(make('option', { value: code, lang: code, selected: code === language }, name));
  }
  picker.addEventListener('change', () => {
    remember(picker.value);
    location.reload();
  });
}
