-- A new SQLite file at schema_c199bfc6. Written by docs/generate.py from the migrations.

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE log_state (
	id INTEGER NOT NULL, 
	origin TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	peaks BLOB NOT NULL, 
	outcomes BIGINT NOT NULL, 
	events BIGINT NOT NULL, 
	checkpoint_at BIGINT NOT NULL, 
	seal BLOB NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE log_leaves (
	seq INTEGER NOT NULL, 
	hash BLOB NOT NULL, 
	tenant TEXT NOT NULL, 
	contract_id TEXT, 
	contract_seq BIGINT, 
	body BLOB NOT NULL, 
	PRIMARY KEY (seq)
);
CREATE UNIQUE INDEX log_leaves_by_contract ON log_leaves (tenant, contract_id, contract_seq);
CREATE TABLE log_tiles (
	level INTEGER NOT NULL, 
	seq BIGINT NOT NULL, 
	hash BLOB NOT NULL, 
	PRIMARY KEY (level, seq)
);
CREATE TABLE checkpoints (
	size INTEGER NOT NULL, 
	note TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (size)
);
CREATE TABLE log_keys (
	vkey VARCHAR(400) NOT NULL, 
	seq BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (vkey)
);
CREATE TABLE blobs (
	tenant TEXT NOT NULL, 
	address TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	refs BIGINT NOT NULL, 
	content BLOB, 
	PRIMARY KEY (tenant, address)
);
CREATE TABLE criteria (
	tenant TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	leaf BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (tenant, digest)
);
CREATE TABLE criteria_names (
	tenant TEXT NOT NULL, 
	name TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	digest TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	PRIMARY KEY (tenant, name, version)
);
CREATE TABLE outcomes (
	tenant TEXT NOT NULL, 
	id TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	contract_id TEXT NOT NULL, 
	agent_id TEXT, 
	consumer_id TEXT, 
	domain TEXT, 
	created_at BIGINT NOT NULL, 
	evidence_leaf BIGINT NOT NULL, 
	input_address TEXT, 
	input_salt BLOB, 
	output_address TEXT, 
	output_salt BLOB, 
	metadata_address TEXT, 
	metadata_salt BLOB, 
	version INTEGER NOT NULL, 
	verdict TEXT NOT NULL, 
	success INTEGER NOT NULL, 
	score FLOAT NOT NULL, 
	criteria_digest TEXT NOT NULL, 
	idempotency_key TEXT, 
	by_agent INTEGER NOT NULL, 
	PRIMARY KEY (tenant, id)
);
CREATE INDEX outcomes_by_agent ON outcomes (tenant, agent_id, seq);
CREATE INDEX outcomes_by_contract ON outcomes (tenant, contract_id, seq);
CREATE INDEX outcomes_by_criteria ON outcomes (tenant, criteria_digest, seq);
CREATE INDEX outcomes_by_score ON outcomes (tenant, verdict, score, seq);
CREATE INDEX outcomes_by_verdict ON outcomes (tenant, verdict, seq);
CREATE UNIQUE INDEX outcomes_in_order ON outcomes (tenant, seq);
CREATE TABLE verdicts (
	tenant TEXT NOT NULL, 
	outcome_id TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	criteria_digest TEXT NOT NULL, 
	verdict TEXT NOT NULL, 
	success INTEGER NOT NULL, 
	score FLOAT NOT NULL, 
	reason TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	leaf BIGINT NOT NULL, 
	salt BLOB, 
	result BLOB, 
	place INTEGER, 
	PRIMARY KEY (tenant, outcome_id, version)
);
CREATE TABLE verdict_segments (
	tenant TEXT NOT NULL, 
	leaf BIGINT NOT NULL, 
	address TEXT NOT NULL, 
	versions INTEGER NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (tenant, leaf)
);
CREATE TABLE verdict_runs (
	tenant TEXT NOT NULL, 
	first_seq BIGINT NOT NULL, 
	version INTEGER NOT NULL, 
	last_seq BIGINT NOT NULL, 
	leaf BIGINT NOT NULL, 
	criteria_digest TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	offsets BLOB, 
	PRIMARY KEY (tenant, first_seq, version)
);
CREATE TABLE keys (
	id VARCHAR(40) NOT NULL, 
	secret_hash BLOB NOT NULL, 
	tenant TEXT NOT NULL, 
	role TEXT NOT NULL, 
	name TEXT NOT NULL, 
	agent_id TEXT, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	revoked_at BIGINT, 
	PRIMARY KEY (id)
);
CREATE INDEX keys_by_tenant ON keys (tenant, id);
CREATE TABLE key_use (
	tenant TEXT NOT NULL, 
	key_id VARCHAR(40) NOT NULL, 
	requests BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	PRIMARY KEY (tenant, key_id)
);
CREATE TABLE sessions (
	token_hash BLOB NOT NULL, 
	key_id VARCHAR(40) NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	signature BLOB NOT NULL, 
	PRIMARY KEY (token_hash)
);
CREATE INDEX sessions_by_end ON sessions (expires_at);
CREATE TABLE idempotency (
	tenant TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	status INTEGER NOT NULL, 
	reply BLOB NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (tenant, "key")
);
CREATE TABLE events (
	seq INTEGER NOT NULL, 
	tenant TEXT NOT NULL, 
	event_id TEXT NOT NULL, 
	type TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	idempotency_key TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (seq)
);
CREATE INDEX events_by_subject ON events (tenant, subject, seq);
CREATE INDEX events_by_tenant ON events (tenant, seq);
CREATE TABLE cursors (
	consumer VARCHAR(100) NOT NULL, 
	seq BIGINT NOT NULL, 
	PRIMARY KEY (consumer)
);
CREATE TABLE leases (
	name VARCHAR(100) NOT NULL, 
	holder TEXT NOT NULL, 
	until BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE webhooks (
	id VARCHAR(40) NOT NULL, 
	tenant TEXT NOT NULL, 
	url TEXT NOT NULL, 
	secret TEXT NOT NULL, 
	types TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	seq BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX webhooks_by_tenant ON webhooks (tenant, id);
CREATE TABLE deliveries (
	webhook_id VARCHAR(40) NOT NULL, 
	seq INTEGER NOT NULL, 
	subject TEXT NOT NULL, 
	attempts INTEGER NOT NULL, 
	next_at BIGINT NOT NULL, 
	dead_at BIGINT, 
	error TEXT NOT NULL, 
	PRIMARY KEY (webhook_id, seq)
);
CREATE INDEX deliveries_by_subject ON deliveries (webhook_id, subject, dead_at, seq);
CREATE INDEX deliveries_due ON deliveries (webhook_id, dead_at, next_at);
CREATE TABLE works (
	tenant TEXT NOT NULL, 
	id VARCHAR(60) NOT NULL, 
	seq BIGINT NOT NULL, 
	consumer_id TEXT NOT NULL, 
	criteria_digest TEXT, 
	has_cpa INTEGER NOT NULL, 
	input_address TEXT NOT NULL, 
	input_salt BLOB NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (tenant, id)
);
CREATE INDEX works_by_consumer ON works (tenant, consumer_id, seq);
CREATE UNIQUE INDEX works_in_order ON works (tenant, seq);
CREATE TABLE contracts (
	tenant TEXT NOT NULL, 
	id VARCHAR(60) NOT NULL, 
	seq BIGINT NOT NULL, 
	work_id VARCHAR(60) NOT NULL, 
	agent_id TEXT NOT NULL, 
	consumer_id TEXT NOT NULL, 
	provider_id TEXT, 
	domain TEXT, 
	state VARCHAR(30) NOT NULL, 
	escrow VARCHAR(30) NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	hold_micros BIGINT NOT NULL, 
	terms BLOB NOT NULL, 
	awarded_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	input_read_at BIGINT, 
	started_at BIGINT, 
	completed_at BIGINT, 
	settled_at BIGINT, 
	outcome_id VARCHAR(60), 
	completion VARCHAR(64), 
	evidence VARCHAR(64), 
	settlement INTEGER NOT NULL, 
	settlements INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	total_micros BIGINT NOT NULL, 
	disputed_from VARCHAR(30), 
	disputes INTEGER NOT NULL, 
	hold_reason TEXT NOT NULL, 
	PRIMARY KEY (tenant, id)
);
CREATE INDEX contracts_by_agent ON contracts (tenant, agent_id, seq);
CREATE INDEX contracts_by_consumer ON contracts (tenant, consumer_id, seq);
CREATE INDEX contracts_by_provider ON contracts (tenant, provider_id, seq);
CREATE INDEX contracts_by_state ON contracts (tenant, state, seq);
CREATE INDEX contracts_by_work ON contracts (tenant, work_id, agent_id, seq);
CREATE INDEX contracts_due ON contracts (state, expires_at);
CREATE UNIQUE INDEX contracts_in_order ON contracts (tenant, seq);
CREATE TABLE contract_transitions (
	tenant TEXT NOT NULL, 
	contract_id VARCHAR(60) NOT NULL, 
	operation VARCHAR(30) NOT NULL, 
	number INTEGER NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	at BIGINT NOT NULL, 
	actor TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	PRIMARY KEY (tenant, contract_id, operation, number)
);
CREATE TABLE settlements (
	tenant TEXT NOT NULL, 
	contract_id VARCHAR(60) NOT NULL, 
	number INTEGER NOT NULL, 
	outcome_id VARCHAR(60) NOT NULL, 
	version INTEGER NOT NULL, 
	at BIGINT NOT NULL, 
	leaf BIGINT NOT NULL, 
	bill BLOB NOT NULL, 
	PRIMARY KEY (tenant, contract_id, number)
);
CREATE TABLE transfers (
	leaf INTEGER NOT NULL, 
	tenant TEXT NOT NULL, 
	contract_id VARCHAR(60) NOT NULL, 
	operation VARCHAR(30) NOT NULL, 
	number INTEGER NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (leaf)
);
CREATE INDEX transfers_by_time ON transfers (tenant, at, leaf);
CREATE UNIQUE INDEX transfers_once ON transfers (tenant, contract_id, operation, number);
CREATE TABLE postings (
	leaf BIGINT NOT NULL, 
	account TEXT NOT NULL, 
	tenant TEXT NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	micros BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (leaf, account)
);
CREATE INDEX postings_by_account ON postings (tenant, account, currency, at, leaf, micros);
CREATE TABLE balances (
	tenant TEXT NOT NULL, 
	currency VARCHAR(3) NOT NULL, 
	account TEXT NOT NULL, 
	micros BIGINT NOT NULL, 
	PRIMARY KEY (tenant, currency, account), 
	CONSTRAINT balances_are_exact CHECK (micros BETWEEN -4611686018427387904 AND 4611686018427387904)
);
CREATE INDEX balances_of_parties ON balances (tenant, currency, account, micros) WHERE substr(account, 1, 7) <> 'escrow:';
CREATE TABLE governance_checks (
	tenant TEXT NOT NULL, 
	outcome_id VARCHAR(60) NOT NULL, 
	version INTEGER NOT NULL, 
	disposition VARCHAR(20) NOT NULL, 
	at BIGINT NOT NULL, 
	leaf BIGINT NOT NULL, 
	salt BLOB, 
	body BLOB, 
	PRIMARY KEY (tenant, outcome_id, version)
);
CREATE TABLE agent_histories (
	tenant TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	kind VARCHAR(20) NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (tenant, agent_id, kind)
);
CREATE TABLE dealings (
	tenant TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	consumer_id TEXT NOT NULL, 
	outcomes BIGINT NOT NULL, 
	with_bonus BIGINT NOT NULL, 
	PRIMARY KEY (tenant, agent_id, consumer_id)
);
CREATE TABLE first_outputs (
	tenant TEXT NOT NULL, 
	output_hash VARCHAR(80) NOT NULL, 
	agent_id TEXT NOT NULL, 
	input_hash VARCHAR(64) NOT NULL, 
	contract_id VARCHAR(60) NOT NULL, 
	signature TEXT NOT NULL, 
	PRIMARY KEY (tenant, output_hash, agent_id, input_hash)
);
CREATE TABLE output_sketches (
	tenant TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	input_hash VARCHAR(64) NOT NULL, 
	sketches TEXT NOT NULL, 
	PRIMARY KEY (tenant, agent_id, input_hash)
);
CREATE TABLE agent_tries (
	tenant TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	criteria_digest TEXT NOT NULL, 
	contract_id VARCHAR(60) NOT NULL, 
	used BIGINT NOT NULL, 
	PRIMARY KEY (tenant, agent_id, criteria_digest, contract_id)
);
CREATE TABLE try_sketches (
	tenant TEXT NOT NULL, 
	agent_id TEXT NOT NULL, 
	criteria_digest TEXT NOT NULL, 
	sketches TEXT NOT NULL, 
	PRIMARY KEY (tenant, agent_id, criteria_digest)
);
CREATE TABLE benchmarks (
	tenant TEXT NOT NULL, 
	slug VARCHAR(100) NOT NULL, 
	version INTEGER NOT NULL, 
	seq BIGINT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	title TEXT NOT NULL, 
	tasks INTEGER NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	deleted_at BIGINT, 
	body BLOB NOT NULL, 
	PRIMARY KEY (tenant, slug, version)
);
CREATE UNIQUE INDEX benchmarks_in_order ON benchmarks (tenant, seq);
CREATE TABLE benchmark_runs (
	tenant TEXT NOT NULL, 
	id VARCHAR(60) NOT NULL, 
	seq BIGINT NOT NULL, 
	slug VARCHAR(100) NOT NULL, 
	version INTEGER NOT NULL, 
	agent_id TEXT, 
	repeats INTEGER NOT NULL, 
	scored INTEGER NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	ended_at BIGINT, 
	PRIMARY KEY (tenant, id)
);
CREATE INDEX benchmark_runs_by_agent ON benchmark_runs (tenant, agent_id, seq);
CREATE INDEX benchmark_runs_by_benchmark ON benchmark_runs (tenant, slug, version, seq);
CREATE UNIQUE INDEX benchmark_runs_in_order ON benchmark_runs (tenant, seq);
CREATE TABLE task_runs (
	tenant TEXT NOT NULL, 
	id VARCHAR(60) NOT NULL, 
	seq BIGINT NOT NULL, 
	benchmark_run_id VARCHAR(60), 
	slug VARCHAR(100) NOT NULL, 
	version INTEGER NOT NULL, 
	task VARCHAR(100) NOT NULL, 
	attempt INTEGER NOT NULL, 
	agent_id TEXT, 
	status VARCHAR(20) NOT NULL, 
	scored INTEGER NOT NULL, 
	reveal VARCHAR(20) NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	started_at BIGINT, 
	deadline BIGINT, 
	ended_at BIGINT, 
	playground_id VARCHAR(60), 
	input_address VARCHAR(64), 
	outcome_id VARCHAR(60), 
	outcome_version INTEGER, 
	body BLOB, 
	PRIMARY KEY (tenant, id)
);
CREATE INDEX task_runs_by_agent ON task_runs (tenant, agent_id, seq);
CREATE INDEX task_runs_by_benchmark_run ON task_runs (tenant, benchmark_run_id, seq);
CREATE INDEX task_runs_by_status ON task_runs (tenant, status, seq);
CREATE UNIQUE INDEX task_runs_in_order ON task_runs (tenant, seq);
CREATE INDEX task_runs_overdue ON task_runs (status, deadline);
CREATE TABLE criterion_runs (
	tenant TEXT NOT NULL, 
	id VARCHAR(60) NOT NULL, 
	task_run_id VARCHAR(60) NOT NULL, 
	outcome_id VARCHAR(60) NOT NULL, 
	version INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	score FLOAT, 
	took_us BIGINT, 
	PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX criterion_runs_by_task_run ON criterion_runs (tenant, task_run_id, outcome_id, version, position);
CREATE TABLE agent_runs (
	tenant TEXT NOT NULL, 
	id VARCHAR(120) NOT NULL, 
	seq BIGINT NOT NULL, 
	agent VARCHAR(200) NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	parent_id VARCHAR(120), 
	item VARCHAR(100), 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	request BLOB NOT NULL, 
	started_at BIGINT, 
	ended_at BIGINT, 
	wake_at BIGINT, 
	owner VARCHAR(120), 
	worker VARCHAR(120), 
	cancel INTEGER NOT NULL, 
	turn INTEGER NOT NULL, 
	retries INTEGER NOT NULL, 
	takeovers INTEGER NOT NULL, 
	submissions INTEGER NOT NULL, 
	tokens BIGINT NOT NULL, 
	state BLOB NOT NULL, 
	usage BLOB NOT NULL, 
	result BLOB, 
	ending VARCHAR(40), 
	error TEXT, 
	waiting_for TEXT, 
	note TEXT, 
	PRIMARY KEY (tenant, id)
);
CREATE INDEX agent_runs_by_agent ON agent_runs (tenant, agent, seq);
CREATE INDEX agent_runs_by_parent ON agent_runs (tenant, parent_id, seq);
CREATE INDEX agent_runs_by_status ON agent_runs (tenant, status, seq);
CREATE INDEX agent_runs_by_worker ON agent_runs (worker, status);
CREATE INDEX agent_runs_due ON agent_runs (status, wake_at);
CREATE UNIQUE INDEX agent_runs_in_order ON agent_runs (tenant, seq);
CREATE TABLE agent_steps (
	tenant TEXT NOT NULL, 
	run_id VARCHAR(120) NOT NULL, 
	"key" VARCHAR(200) NOT NULL, 
	at BIGINT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (tenant, run_id, "key")
);
CREATE TABLE submissions (
	tenant TEXT NOT NULL, 
	run_id VARCHAR(120) NOT NULL, 
	submission_id VARCHAR(200) NOT NULL, 
	number INTEGER NOT NULL, 
	turn INTEGER NOT NULL, 
	candidate_hash VARCHAR(64), 
	candidate BLOB NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	counted INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	code TEXT, 
	retryable INTEGER NOT NULL, 
	ending VARCHAR(40), 
	said BLOB NOT NULL, 
	feedback TEXT, 
	verifier_version VARCHAR(100), 
	outcome_id VARCHAR(60), 
	salt BLOB NOT NULL, 
	leaf BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (tenant, run_id, submission_id)
);
CREATE INDEX submissions_by_candidate ON submissions (tenant, run_id, candidate_hash, number);
CREATE TABLE workers (
	id VARCHAR(120) NOT NULL, 
	agents TEXT NOT NULL, 
	started_at BIGINT NOT NULL, 
	until BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE usage_runs (
	tenant TEXT NOT NULL, 
	id VARCHAR(200) NOT NULL, 
	seq BIGINT NOT NULL, 
	framework VARCHAR(200) NOT NULL, 
	account VARCHAR(200) NOT NULL, 
	attribution_kind VARCHAR(20) NOT NULL, 
	attribution_key VARCHAR(200) NOT NULL, 
	task VARCHAR(200) NOT NULL, 
	contract_id VARCHAR(200), 
	started_at BIGINT, 
	ended_at BIGINT, 
	local_input BIGINT, 
	local_output BIGINT, 
	local_requests BIGINT, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	quoted_micros BIGINT, 
	status VARCHAR(20) NOT NULL, 
	code VARCHAR(40) NOT NULL, 
	next_observation_at BIGINT, 
	last_observation_at BIGINT, 
	observations INTEGER NOT NULL, 
	exhausted INTEGER NOT NULL, 
	waiting_for VARCHAR(20) NOT NULL, 
	withdrawn INTEGER NOT NULL, 
	last_input BIGINT, 
	last_output BIGINT, 
	last_requests BIGINT, 
	salt BLOB, 
	acknowledged BLOB, 
	verdict BLOB NOT NULL, 
	progress BLOB, 
	quotes BLOB, 
	costs BLOB, 
	body BLOB NOT NULL, 
	PRIMARY KEY (tenant, id)
);
CREATE INDEX usage_runs_by_attribution_key ON usage_runs (tenant, account, attribution_kind, attribution_key, ended_at);
CREATE INDEX usage_runs_by_contract ON usage_runs (tenant, contract_id, seq);
CREATE INDEX usage_runs_by_cost ON usage_runs (tenant, quoted_micros, seq);
CREATE INDEX usage_runs_by_framework ON usage_runs (tenant, framework, seq);
CREATE INDEX usage_runs_by_status ON usage_runs (tenant, status, seq, account, code, ended_at, last_input, last_output, local_input, local_output);
CREATE INDEX usage_runs_by_tenant_account ON usage_runs (tenant, account, ended_at, seq);
CREATE INDEX usage_runs_due ON usage_runs (tenant, account, next_observation_at);
CREATE UNIQUE INDEX usage_runs_in_order ON usage_runs (tenant, seq);
CREATE INDEX usage_runs_observed ON usage_runs (tenant, account, last_observation_at);
CREATE TABLE usage_account_totals (
	tenant TEXT NOT NULL, 
	account VARCHAR(200) NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	runs BIGINT NOT NULL, 
	tokens BIGINT NOT NULL, 
	unattributed BIGINT NOT NULL, 
	PRIMARY KEY (tenant, account, status)
);
CREATE TABLE usage_observations (
	tenant TEXT NOT NULL, 
	run_id VARCHAR(200) NOT NULL, 
	number INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (tenant, run_id, number)
);
CREATE INDEX usage_observations_by_id ON usage_observations (tenant, run_id, id);
CREATE TABLE usage_calls (
	tenant TEXT NOT NULL, 
	account VARCHAR(200) NOT NULL, 
	call_id VARCHAR(200) NOT NULL, 
	run_id VARCHAR(200) NOT NULL, 
	PRIMARY KEY (tenant, account, call_id)
);
CREATE TABLE usage_fetches (
	tenant TEXT NOT NULL, 
	account VARCHAR(200) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	window_start BIGINT NOT NULL, 
	window_end BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	content BLOB NOT NULL, 
	PRIMARY KEY (tenant, account, digest)
);
CREATE TABLE usage_accounts (
	tenant TEXT NOT NULL, 
	account VARCHAR(200) NOT NULL, 
	owner VARCHAR(120) NOT NULL, 
	until BIGINT NOT NULL, 
	credential VARCHAR(64) NOT NULL, 
	PRIMARY KEY (tenant, account)
);
CREATE TABLE evaluations (
	tenant TEXT NOT NULL, 
	id TEXT NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	status TEXT NOT NULL, 
	criteria_digest TEXT NOT NULL, 
	dataset_digest TEXT, 
	tags BLOB NOT NULL, 
	planned BIGINT, 
	cases BIGINT NOT NULL, 
	segments INTEGER NOT NULL, 
	started_at BIGINT NOT NULL, 
	ended_at BIGINT, 
	PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX evaluations_by_name ON evaluations (tenant, name);
CREATE TABLE evaluation_figures (
	tenant TEXT NOT NULL, 
	evaluation_id TEXT NOT NULL, 
	cases BIGINT NOT NULL, 
	rate FLOAT, 
	cost_micros BIGINT, 
	content BLOB NOT NULL, 
	signature BLOB NOT NULL, 
	PRIMARY KEY (tenant, evaluation_id)
);
CREATE TABLE evaluation_segments (
	tenant TEXT NOT NULL, 
	evaluation_id TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	leaf BIGINT NOT NULL, 
	address TEXT NOT NULL, 
	cases INTEGER NOT NULL, 
	created_at BIGINT NOT NULL, 
	PRIMARY KEY (tenant, evaluation_id, number)
);
CREATE TABLE evaluation_cases (
	tenant TEXT NOT NULL, 
	evaluation_id TEXT NOT NULL, 
	case_id VARCHAR(200) NOT NULL, 
	repeat INTEGER NOT NULL, 
	seq BIGINT NOT NULL, 
	segment INTEGER NOT NULL, 
	place INTEGER NOT NULL, 
	outcome_id TEXT NOT NULL, 
	version INTEGER NOT NULL, 
	verdict TEXT NOT NULL, 
	success INTEGER NOT NULL, 
	score FLOAT NOT NULL, 
	statuses TEXT NOT NULL, 
	group_id TEXT, 
	tags BLOB, 
	claimed TEXT, 
	error TEXT, 
	faults TEXT, 
	latency_ms FLOAT, 
	cost_micros BIGINT, 
	PRIMARY KEY (tenant, evaluation_id, case_id, repeat)
);
CREATE UNIQUE INDEX evaluation_cases_in_order ON evaluation_cases (tenant, evaluation_id, seq);
CREATE UNIQUE INDEX evaluation_cases_by_outcome ON evaluation_cases (tenant, outcome_id);
CREATE TABLE datasets (
	tenant TEXT NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	version INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	rows BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	source VARCHAR(200) NOT NULL, 
	PRIMARY KEY (tenant, name, version)
);
CREATE TABLE dataset_chunks (
	tenant TEXT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	address TEXT NOT NULL, 
	PRIMARY KEY (tenant, digest, number)
);
CREATE TABLE judge_votes (
	tenant TEXT NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	output_digest TEXT NOT NULL, 
	other_digest TEXT NOT NULL, 
	asked_at BIGINT NOT NULL, 
	salt BLOB NOT NULL, 
	leaf BIGINT NOT NULL, 
	body BLOB NOT NULL, 
	PRIMARY KEY (tenant, "key")
);
CREATE INDEX judge_votes_by_output ON judge_votes (tenant, output_digest);
CREATE INDEX judge_votes_by_other ON judge_votes (tenant, other_digest);
CREATE TABLE judge_tokens (
	tenant TEXT NOT NULL, 
	account VARCHAR(200) NOT NULL, 
	voter VARCHAR(200) NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	calls BIGINT NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	unknown_calls BIGINT NOT NULL, 
	unknown_tokens BIGINT NOT NULL, 
	cost_micros BIGINT NOT NULL, 
	unknown_micros BIGINT NOT NULL, 
	unpriced_calls BIGINT NOT NULL, 
	PRIMARY KEY (tenant, account, voter, model)
);
CREATE TABLE judge_calls (
	tenant TEXT NOT NULL, 
	"key" VARCHAR(120) NOT NULL, 
	output_digest TEXT NOT NULL, 
	other_digest TEXT NOT NULL, 
	sends INTEGER NOT NULL, 
	sent_at BIGINT NOT NULL, 
	PRIMARY KEY (tenant, "key")
);
CREATE TABLE judge_calibrations (
	tenant TEXT NOT NULL, 
	version VARCHAR(64) NOT NULL, 
	judge VARCHAR(200) NOT NULL, 
	labels BIGINT NOT NULL, 
	kappa FLOAT, 
	leaf BIGINT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (tenant, version)
);
CREATE TABLE reviews (
	tenant TEXT NOT NULL, 
	id TEXT NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	evaluation_id TEXT NOT NULL, 
	criterion TEXT, 
	terms BLOB NOT NULL, 
	cases INTEGER NOT NULL, 
	population BIGINT NOT NULL, 
	labels BIGINT NOT NULL, 
	leaf BIGINT NOT NULL, 
	created_at BIGINT NOT NULL, 
	created_by TEXT NOT NULL, 
	PRIMARY KEY (tenant, id)
);
CREATE UNIQUE INDEX reviews_by_name ON reviews (tenant, name);
CREATE INDEX reviews_by_evaluation ON reviews (tenant, evaluation_id);
CREATE TABLE review_draws (
	tenant TEXT NOT NULL, 
	review_id TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	case_id VARCHAR(200) NOT NULL, 
	repeat INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	stratum VARCHAR(200) NOT NULL, 
	probability FLOAT, 
	PRIMARY KEY (tenant, review_id, number)
);
CREATE UNIQUE INDEX review_draws_by_case ON review_draws (tenant, review_id, case_id, repeat);
CREATE TABLE review_labels (
	tenant TEXT NOT NULL, 
	review_id TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	labeller VARCHAR(200) NOT NULL, 
	version INTEGER NOT NULL, 
	choice VARCHAR(200) NOT NULL, 
	note TEXT, 
	note_salt BLOB, 
	note_hash TEXT NOT NULL, 
	salt BLOB NOT NULL, 
	leaf BIGINT NOT NULL, 
	recorded_by TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (tenant, review_id, number, labeller, version)
);
INSERT INTO alembic_version (version_num) VALUES ('schema_c199bfc6');
