// Requests to the server of this page. One that is repeated costs nothing while nothing has changed: the server answers
// by the ETag of what the page has.

export class Refused extends Error {
  constructor(status, what) {
    super(what);
    this.status = status;
  }
}

async function refusal(response) {
  let what = `${response.status} ${response.statusText}`;
  try {
    what = (await response.json()).error ?? what;
  } catch {
    // The answer is not of this server, but of something in between.
  }
  return new Refused(response.status, what);
}

const kPatience = 15000;  // milliseconds

// Repeated requests for one thing. get() resolves to null if it is as before.
export class Source {
  constructor(path) {
    this.path = path;
    this.tag = null;
  }

  async get() {
    const headers = this.tag ? {'If-None-Match': this.tag} : {};
    const response = await fetch(this.path, {headers, cache: 'no-store', signal: AbortSignal.timeout(kPatience)});
    if (response.status === 304) return null;
    if (!response.ok) throw await refusal(response);
    const found = await response.json();
    this.tag = response.headers.get('ETag');
    return found;
  }
}

export const get = (path) => new Source(path).get();

// A request that changes something. Pages of other sites cannot send its header.
export async function act(path) {
  const response = await fetch(path, {method: 'POST', headers: {'X-Modelet-Action': 'yes', 'Content-Type': 'application/json'},
                                      body: '{}', cache: 'no-store', signal: AbortSignal.timeout(kPatience)});
  if (!response.ok) throw await refusal(response);
}
