// Who is here: the key of this browser's person, from the link, from before, or of a new person.

import { call, joining, kept, keyOfAddress, Refused } from "./study.js";

// { key, state }: a key that the study knows, and what it says about its person.
export async function enter() {
  const key = keyOfAddress("") ?? (await join());
  try {
    return { key, state: await call("api/state", { key }) };
  } catch (error) {
    if (!(error instanceof Refused && error.status === 401)) throw error;
    const joined = await join(); // the key was of another study
    return { key: joined, state: await call("api/state", { key: joined }) };
  }
}

async function join() {
  const { key } = await call("api/join", { body: joining("") });
  kept.set("key", key);
  kept.remove("join");
  return key;
}
