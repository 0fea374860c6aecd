/** Conversations that the page keeps, in the browser's own database. */
import { randomName } from "./names.js";
import type { ChatMessage } from "./openai.js";

/** A message, and what was said of its making. */
export interface Message extends ChatMessage {
  content: string;
  /** Below an answer: how fast it was. */
  note?: string;
  error?: boolean;
}

export interface Chat {
  id: string;
  title: string;
  /** Milliseconds since 1970. */
  changed: number;
  messages: Message[];
  /** Tokens of context that its last answer ended with. */
  used?: number;
}

export function newChat(): Chat {
  return { id: randomName(24), title: "New chat", changed: Date.now(), messages: [] };
}

let database: Promise<IDBDatabase> | undefined;

function opened(): Promise<IDBDatabase> {
  database ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("wgslm-chats", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return database;
}

async function ask<T>(mode: IDBTransactionMode, what: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const store = (await opened()).transaction("chats", mode).objectStore("chats");
  const request = what(store);
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** The chats, the last one first; none where the browser keeps nothing. */
export async function allChats(): Promise<Chat[]> {
  const chats = await ask("readonly", (store) => store.getAll() as IDBRequest<Chat[]>).catch((): Chat[] => []);
  return chats.sort((a, b) => b.changed - a.changed);
}

/** Keeps a chat; one without messages is not worth it. */
export async function saveChat(chat: Chat): Promise<void> {
  if (chat.messages.length > 0) await ask("readwrite", (store) => store.put(chat)).catch(() => {});
}

export async function deleteChat(id: string): Promise<void> {
  await ask("readwrite", (store) => store.delete(id)).catch(() => {});
}
