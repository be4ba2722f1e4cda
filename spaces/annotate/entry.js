// Identify the person: the key is in the link or in storage, or a new person joins.

import { call, joining, kept, keyOfAddress, Refused } from "./study.js";

// Return { key, state }: a key that is valid for the study, and the state of the person.
export async function enter() {
  const key = keyOfAddress("") ?? (await join());
  try {
    return { key, state: await call("api/state", { key }) };
  } catch (error) {
    if (!(error instanceof Refused && error.status === 401)) throw error;
    const joined = await join(); // the key belongs to another study
    return { key: joined, state: await call("api/state", { key: joined }) };
  }
}

async function join() {
  const { key } = await call("api/join", { body: joining("") });
  kept.set("key", key);
  kept.remove("join");
  return key;
}
