// Asks the coordinator's API, the same that everybody uses. Owns who we are and what a refusal looks like.

const TIMEOUT_MS = 15000;

/** The API said no. field: the part of the request that is to blame, or "". */
export class Refused extends Error {
  constructor(status, message, field) {
    super(message);
    this.status = status;
    this.field = field;
  }
}

/** No answer came. */
export class Unreachable extends Error {}

/** kind: local, reader, admin or tenant, as the gate found it when the page was opened. */
export const caller = {
  kind: document.body.dataset.caller ?? "reader",
  tenant: document.body.dataset.tenant ?? "",
  asked: document.body.dataset.asked === "yes",
};

let adminToken = ""; // in this page's memory alone: a reload forgets it

export const changing = {
  get needsToken() {
    return caller.kind !== "local" && adminToken === "";
  },
  use(token) {
    adminToken = token;
  },
  forget() {
    adminToken = "";
  },
};

export async function read(path, { signal } = {}) {
  return call("GET", path, { signal });
}

/** A question that changes nothing although it has a body. */
export async function question(path, body) {
  return call("POST", path, { body });
}

/** With the admin token, where one is needed. */
export async function change(method, path, body) {
  return call(method, path, { body, token: adminToken });
}

/** An object as JSON. From 2^53 on, JSON.stringify rounds whole numbers to fewer digits, and perhaps beyond a bound. */
function written(body) {
  const parts = Object.entries(body).map(([name, value]) => {
    const isLarge = Number.isInteger(value) && !Number.isSafeInteger(value);
    return `${JSON.stringify(name)}:${isLarge ? BigInt(value) : JSON.stringify(value)}`;
  });
  return `{${parts.join(",")}}`;
}

async function call(method, path, { body, token = "", signal } = {}) {
  const headers = { "Tiered-Page": "1", Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (token) headers.Authorization = `Bearer ${token}`;
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : written(body),
      credentials: "same-origin",
      cache: "no-store",
      redirect: "error",
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
    if (answer.status === 204) return null;
    const said = await answer.json();
    if (answer.ok) return said;
    throw new Refused(
      answer.status,
      said?.error?.message ?? `the coordinator answered ${answer.status}`,
      said?.error?.field ?? "",
    );
  } catch (error) {
    if (error instanceof Refused) {
      if (error.status === 401 && !token) location.assign("login");
      throw error;
    }
    if (signal?.aborted) throw error;
    throw new Unreachable(
      error instanceof SyntaxError ? "the answer was no JSON" : "the coordinator does not answer",
    );
  }
}
