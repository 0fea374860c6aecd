/** So many letters and digits, by chance: by what pages have that are not secure, too, unlike `crypto.randomUUID`. */
export function randomName(length: number): string {
  const letters = "abcdefghijklmnopqrstuvwxyz0123456789";
  return Array.from(crypto.getRandomValues(new Uint32Array(length)), (random) => letters[random % letters.length]).join("");
}
