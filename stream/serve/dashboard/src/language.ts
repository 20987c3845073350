/** The picker of languages. */

import { byId, make } from './dom';
import { LANGUAGES, language, remember, type Language } from './texts';

/** Of each language its own name; Intl knows them, too, but reads its data of every language for them. */
const NAMES: Record<Language, string> = { en: 'English', de: 'Deutsch', es: 'español', fr: 'français', pl: 'polski' };

/** Fill the picker; another choice loads the page again, with the view in the address. */
export function setUpLanguage(): void {
  const picker = byId<HTMLSelectElement>('language');
  for (const code of LANGUAGES) {
    picker.append(make('option', { value: code, lang: code, selected: code === language }, NAMES[code]));
  }
  picker.addEventListener('change', () => {
    remember(picker.value);
    location.reload();
  });
}
