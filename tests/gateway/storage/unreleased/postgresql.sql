CREATE TABLE prompt_text (
	id BIGSERIAL NOT NULL,
	digest BYTEA NOT NULL,
	body TEXT NOT NULL,
	CONSTRAINT pk_prompt_text PRIMARY KEY (id),
	CONSTRAINT uq_prompt_text_digest UNIQUE (digest)
);

CREATE TABLE summary_part (
	conversation BIGINT NOT NULL,
	key TEXT NOT NULL,
	text TEXT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_summary_part PRIMARY KEY (conversation, key)
);

CREATE INDEX ix_summary_part_at ON summary_part (at);

CREATE TABLE model_window (
	model TEXT NOT NULL,
	believed BIGINT NOT NULL,
	context_length BIGINT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_model_window PRIMARY KEY (model)
);

CREATE TABLE spent_slot (
	slot BIGINT NOT NULL,
	provider TEXT NOT NULL,
	model TEXT NOT NULL,
	size BIGINT NOT NULL,
	bucket BIGINT NOT NULL,
	calls BIGINT DEFAULT '0' NOT NULL,
	input_tokens BIGINT DEFAULT '0' NOT NULL,
	output_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_read_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_write_5m_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_write_1h_tokens BIGINT DEFAULT '0' NOT NULL,
	pico_usd BIGINT DEFAULT '0' NOT NULL,
	priced BIGINT DEFAULT '0' NOT NULL,
	estimates BIGINT DEFAULT '0' NOT NULL,
	answers BIGINT DEFAULT '0' NOT NULL,
	answer_prompt BIGINT DEFAULT '0' NOT NULL,
	answer_input BIGINT DEFAULT '0' NOT NULL,
	answer_read BIGINT DEFAULT '0' NOT NULL,
	answer_5m BIGINT DEFAULT '0' NOT NULL,
	answer_1h BIGINT DEFAULT '0' NOT NULL,
	answer_known BIGINT DEFAULT '0' NOT NULL,
	CONSTRAINT pk_spent_slot PRIMARY KEY (slot, provider, model, size, bucket)
);

CREATE TABLE spent_by (
	sender TEXT NOT NULL,
	slot BIGINT NOT NULL,
	conversation BIGINT NOT NULL,
	provider TEXT NOT NULL,
	model TEXT NOT NULL,
	size BIGINT NOT NULL,
	calls BIGINT DEFAULT '0' NOT NULL,
	input_tokens BIGINT DEFAULT '0' NOT NULL,
	output_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_read_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_write_5m_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_write_1h_tokens BIGINT DEFAULT '0' NOT NULL,
	pico_usd BIGINT DEFAULT '0' NOT NULL,
	priced BIGINT DEFAULT '0' NOT NULL,
	estimates BIGINT DEFAULT '0' NOT NULL,
	answers BIGINT DEFAULT '0' NOT NULL,
	answer_prompt BIGINT DEFAULT '0' NOT NULL,
	answer_input BIGINT DEFAULT '0' NOT NULL,
	answer_read BIGINT DEFAULT '0' NOT NULL,
	answer_5m BIGINT DEFAULT '0' NOT NULL,
	answer_1h BIGINT DEFAULT '0' NOT NULL,
	answer_known BIGINT DEFAULT '0' NOT NULL,
	CONSTRAINT pk_spent_by PRIMARY KEY (sender, slot, conversation, provider, model, size)
);

CREATE TABLE member (
	platform TEXT NOT NULL,
	sender TEXT NOT NULL,
	sender_name TEXT NOT NULL,
	role TEXT NOT NULL,
	granted_by TEXT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_member PRIMARY KEY (platform, sender)
);

CREATE INDEX ix_member_at ON member (at, platform, sender);

CREATE TABLE web_user (
	name TEXT NOT NULL,
	role TEXT NOT NULL,
	same_as TEXT,
	invited_by TEXT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	identity TEXT,
	let_in_by TEXT,
	CONSTRAINT pk_web_user PRIMARY KEY (name)
);

CREATE UNIQUE INDEX ux_web_user_identity ON web_user (identity);

CREATE TABLE web_session (
	id BIGSERIAL NOT NULL,
	hash TEXT NOT NULL,
	sender TEXT NOT NULL,
	signed_in_by TEXT NOT NULL,
	address TEXT NOT NULL,
	browser TEXT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	used_at DOUBLE PRECISION NOT NULL,
	expires_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_web_session PRIMARY KEY (id),
	CONSTRAINT uq_web_session_hash UNIQUE (hash)
);

CREATE INDEX ix_web_session_sender ON web_session (sender);

CREATE TABLE web_link (
	hash TEXT NOT NULL,
	sender TEXT NOT NULL,
	expires_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_web_link PRIMARY KEY (hash)
);

CREATE TABLE memory (
	id BIGSERIAL NOT NULL,
	scope TEXT NOT NULL,
	target TEXT NOT NULL,
	text TEXT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	subject TEXT,
	value TEXT,
	said_by TEXT,
	conversation BIGINT,
	seq BIGINT,
	ended_at DOUBLE PRECISION,
	ended_by BIGINT,
	turn_id BIGINT,
	told_at DOUBLE PRECISION,
	CONSTRAINT pk_memory PRIMARY KEY (id)
);

CREATE INDEX ix_memory_conversation ON memory (conversation) WHERE conversation IS NOT NULL;

CREATE INDEX ix_memory_turn_id ON memory (turn_id) WHERE turn_id IS NOT NULL;

CREATE INDEX ix_memory_scope ON memory (scope);

CREATE TABLE audit_row (
	id BIGSERIAL NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	kind TEXT NOT NULL,
	conversation BIGINT,
	said TEXT,
	CONSTRAINT pk_audit_row PRIMARY KEY (id)
);

CREATE INDEX ix_audit_row_conversation ON audit_row (conversation) WHERE conversation IS NOT NULL;

CREATE INDEX ix_audit_row_kind_id ON audit_row (kind, id);

CREATE TABLE mcp_confined (
	name TEXT NOT NULL,
	CONSTRAINT pk_mcp_confined PRIMARY KEY (name)
);

CREATE TABLE mcp_text (
	digest TEXT NOT NULL,
	server TEXT NOT NULL,
	tool TEXT NOT NULL,
	why TEXT NOT NULL,
	text TEXT NOT NULL,
	state TEXT NOT NULL,
	told_at DOUBLE PRECISION,
	by TEXT DEFAULT '' NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_mcp_text PRIMARY KEY (digest)
);

CREATE TABLE replica (
	id BIGSERIAL NOT NULL,
	name TEXT NOT NULL,
	heartbeat_until DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_replica PRIMARY KEY (id)
);

CREATE TABLE adapter_lease (
	platform TEXT NOT NULL,
	account TEXT NOT NULL,
	shard BIGINT NOT NULL,
	owner BIGINT,
	epoch BIGINT DEFAULT '0' NOT NULL,
	CONSTRAINT pk_adapter_lease PRIMARY KEY (platform, account, shard)
);

CREATE TABLE identity (
	name TEXT NOT NULL,
	commits BIGINT NOT NULL,
	CONSTRAINT pk_identity PRIMARY KEY (name)
);

CREATE TABLE quarantine (
	id BIGSERIAL NOT NULL,
	source TEXT NOT NULL,
	dedupe_key TEXT NOT NULL,
	raw TEXT NOT NULL,
	reason TEXT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	chat TEXT,
	CONSTRAINT pk_quarantine PRIMARY KEY (id),
	CONSTRAINT uq_quarantine_source_dedupe_key UNIQUE (source, dedupe_key)
);

CREATE INDEX ix_quarantine_raw_at ON quarantine (at) WHERE raw != '';

CREATE TABLE cursor (
	source TEXT NOT NULL,
	position BIGINT NOT NULL,
	CONSTRAINT pk_cursor PRIMARY KEY (source)
);

CREATE TABLE news (
	kind TEXT NOT NULL,
	n BIGINT NOT NULL,
	CONSTRAINT pk_news PRIMARY KEY (kind)
);

CREATE TABLE chat_watch (
	session_key TEXT NOT NULL,
	replica BIGINT NOT NULL,
	until DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_chat_watch PRIMARY KEY (session_key, replica)
);

CREATE TABLE chat_preview (
	session_key TEXT NOT NULL,
	text TEXT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_chat_preview PRIMARY KEY (session_key)
);

CREATE TABLE alert (
	id BIGSERIAL NOT NULL,
	kind TEXT NOT NULL,
	subject TEXT NOT NULL,
	text TEXT NOT NULL,
	since DOUBLE PRECISION NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	seen_at DOUBLE PRECISION NOT NULL,
	told_at DOUBLE PRECISION,
	over_at DOUBLE PRECISION,
	over_told_at DOUBLE PRECISION,
	posted BIGINT DEFAULT '0' NOT NULL,
	post_at DOUBLE PRECISION DEFAULT '0' NOT NULL,
	CONSTRAINT pk_alert PRIMARY KEY (id)
);

CREATE INDEX ix_alert_at ON alert (at);

CREATE UNIQUE INDEX ux_alert_open ON alert (kind, subject) WHERE over_at IS NULL;

CREATE TABLE conversation (
	id BIGSERIAL NOT NULL,
	platform TEXT NOT NULL,
	account TEXT NOT NULL,
	chat TEXT NOT NULL,
	thread TEXT,
	"user" TEXT,
	title TEXT DEFAULT '' NOT NULL,
	active_session_id BIGINT,
	created_at DOUBLE PRECISION NOT NULL,
	inbox_head BIGINT DEFAULT '0' NOT NULL,
	outbox_head BIGINT DEFAULT '0' NOT NULL,
	message_head BIGINT DEFAULT '0' NOT NULL,
	owner BIGINT,
	epoch BIGINT DEFAULT '0' NOT NULL,
	ready_no BIGINT,
	turn_not_before DOUBLE PRECISION DEFAULT '0' NOT NULL,
	cancel_upto_seq BIGINT DEFAULT '0' NOT NULL,
	parent_turn_id BIGINT,
	parent_call_id TEXT,
	model TEXT,
	searched_seq BIGINT DEFAULT '0' NOT NULL,
	CONSTRAINT pk_conversation PRIMARY KEY (id),
	CONSTRAINT fk_conversation_owner_replica FOREIGN KEY(owner) REFERENCES replica (id)
);

CREATE UNIQUE INDEX uq_conversation_parent_turn_id_parent_call_id ON conversation (parent_turn_id, parent_call_id) WHERE parent_turn_id IS NOT NULL;

CREATE INDEX ix_conversation_ready ON conversation (ready_no) WHERE owner IS NULL AND ready_no IS NOT NULL;

CREATE INDEX ix_conversation_platform_user ON conversation (platform, "user") WHERE "user" IS NOT NULL;

CREATE INDEX ix_conversation_owner ON conversation (owner) WHERE owner IS NOT NULL;

CREATE INDEX ix_conversation_unsearched ON conversation (id) WHERE message_head > searched_seq;

CREATE TABLE prompt_base (
	id BIGSERIAL NOT NULL,
	digest BYTEA NOT NULL,
	prompt_id BIGINT NOT NULL,
	tools_id BIGINT,
	layers TEXT NOT NULL,
	inputs TEXT,
	CONSTRAINT pk_prompt_base PRIMARY KEY (id),
	CONSTRAINT uq_prompt_base_digest UNIQUE (digest),
	CONSTRAINT fk_prompt_base_prompt_id_prompt_text FOREIGN KEY(prompt_id) REFERENCES prompt_text (id),
	CONSTRAINT fk_prompt_base_tools_id_prompt_text FOREIGN KEY(tools_id) REFERENCES prompt_text (id)
);

CREATE INDEX ix_prompt_base_prompt_id ON prompt_base (prompt_id);

CREATE INDEX ix_prompt_base_tools_id ON prompt_base (tools_id);

CREATE TABLE alias (
	session_key TEXT NOT NULL,
	conversation BIGINT NOT NULL,
	CONSTRAINT pk_alias PRIMARY KEY (session_key),
	CONSTRAINT fk_alias_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_alias_conversation ON alias (conversation);

CREATE TABLE session (
	id BIGSERIAL NOT NULL,
	conversation BIGINT NOT NULL,
	parent_session_id BIGINT,
	start_reason TEXT NOT NULL,
	end_reason TEXT,
	prompt_tokens BIGINT,
	prompt_upto_seq BIGINT,
	started_at DOUBLE PRECISION NOT NULL,
	ended_at DOUBLE PRECISION,
	number BIGINT DEFAULT '1' NOT NULL,
	prompt_output_tokens BIGINT,
	report_model TEXT,
	token_ratio DOUBLE PRECISION DEFAULT '1' NOT NULL,
	planner_state TEXT DEFAULT '{}' NOT NULL,
	prefix TEXT,
	moved TEXT,
	base_id BIGINT,
	own_prompt TEXT,
	origins TEXT,
	CONSTRAINT pk_session PRIMARY KEY (id),
	CONSTRAINT fk_session_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id),
	CONSTRAINT uq_session_parent_session_id UNIQUE (parent_session_id),
	CONSTRAINT fk_session_parent_session_id_session FOREIGN KEY(parent_session_id) REFERENCES session (id),
	CONSTRAINT fk_session_base_id_prompt_base FOREIGN KEY(base_id) REFERENCES prompt_base (id)
);

CREATE INDEX ix_session_conversation ON session (conversation);

CREATE INDEX ix_session_base_id ON session (base_id) WHERE base_id IS NOT NULL;

CREATE TABLE node (
	conversation BIGINT NOT NULL,
	number BIGINT NOT NULL,
	level BIGINT NOT NULL,
	first_seq BIGINT NOT NULL,
	last_seq BIGINT NOT NULL,
	children TEXT DEFAULT '[]' NOT NULL,
	text TEXT NOT NULL,
	source TEXT NOT NULL,
	tokens BIGINT NOT NULL,
	source_tokens BIGINT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_node PRIMARY KEY (conversation, number),
	CONSTRAINT fk_node_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE TABLE message (
	conversation BIGINT NOT NULL,
	seq BIGINT NOT NULL,
	session_id BIGINT NOT NULL,
	turn_id BIGINT,
	role TEXT NOT NULL,
	body TEXT NOT NULL,
	tokens BIGINT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_message PRIMARY KEY (conversation, seq),
	CONSTRAINT fk_message_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE TABLE blob (
	id BIGSERIAL NOT NULL,
	conversation BIGINT NOT NULL,
	turn_id BIGINT,
	body TEXT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_blob PRIMARY KEY (id),
	CONSTRAINT fk_blob_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_blob_conversation ON blob (conversation);

CREATE TABLE search_row (
	conversation BIGINT NOT NULL,
	seq BIGINT NOT NULL,
	role TEXT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	terms BIGINT NOT NULL,
	CONSTRAINT pk_search_row PRIMARY KEY (conversation, seq),
	CONSTRAINT fk_search_row_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE TABLE search_index (id BIGINT PRIMARY KEY, terms TSVECTOR NOT NULL); CREATE INDEX search_index_terms ON search_index USING gin (terms);

CREATE TABLE topic (
	conversation BIGINT NOT NULL,
	first_seq BIGINT NOT NULL,
	last_seq BIGINT NOT NULL,
	text TEXT NOT NULL,
	terms TEXT NOT NULL,
	messages BIGINT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	last_at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_topic PRIMARY KEY (conversation, first_seq),
	CONSTRAINT fk_topic_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id) ON DELETE CASCADE
);

CREATE TABLE vector (
	conversation BIGINT NOT NULL,
	seq BIGINT NOT NULL,
	body BYTEA NOT NULL,
	CONSTRAINT pk_vector PRIMARY KEY (conversation, seq),
	CONSTRAINT fk_vector_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id) ON DELETE CASCADE
);

CREATE TABLE vector_progress (
	conversation BIGINT NOT NULL,
	space TEXT NOT NULL,
	upto_seq BIGINT NOT NULL,
	claimed_until DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_vector_progress PRIMARY KEY (conversation),
	CONSTRAINT fk_vector_progress_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id) ON DELETE CASCADE
);

CREATE TABLE memory_progress (
	conversation BIGINT NOT NULL,
	upto_turn BIGINT NOT NULL,
	claimed_until DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_memory_progress PRIMARY KEY (conversation),
	CONSTRAINT fk_memory_progress_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id) ON DELETE CASCADE
);

CREATE TABLE todo (
	conversation BIGINT NOT NULL,
	items TEXT NOT NULL,
	first_seq BIGINT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_todo PRIMARY KEY (conversation),
	CONSTRAINT fk_todo_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE TABLE attachment (
	id BIGSERIAL NOT NULL,
	conversation BIGINT NOT NULL,
	inbox_seq BIGINT,
	turn_id BIGINT,
	name TEXT NOT NULL,
	kind TEXT NOT NULL,
	mime TEXT NOT NULL,
	size_bytes BIGINT,
	sha256 TEXT,
	ref TEXT NOT NULL,
	state TEXT NOT NULL,
	failures BIGINT DEFAULT '0' NOT NULL,
	error TEXT,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_attachment PRIMARY KEY (id),
	CONSTRAINT fk_attachment_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_attachment_conversation_inbox_seq ON attachment (conversation, inbox_seq);

CREATE INDEX ix_attachment_turn_id ON attachment (turn_id);

CREATE INDEX ix_attachment_pending ON attachment (conversation) WHERE state = 'pending';

CREATE TABLE ledger (
	id BIGSERIAL NOT NULL,
	conversation BIGINT NOT NULL,
	turn_id BIGINT,
	call_id TEXT,
	sender TEXT DEFAULT '' NOT NULL,
	provider TEXT NOT NULL,
	model TEXT NOT NULL,
	purpose TEXT NOT NULL,
	input_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_read_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_write_5m_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_write_1h_tokens BIGINT DEFAULT '0' NOT NULL,
	output_tokens BIGINT DEFAULT '0' NOT NULL,
	estimated BOOLEAN DEFAULT false NOT NULL,
	usd DOUBLE PRECISION,
	at DOUBLE PRECISION NOT NULL,
	before_tokens BIGINT DEFAULT '0' NOT NULL,
	CONSTRAINT pk_ledger PRIMARY KEY (id),
	CONSTRAINT fk_ledger_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_ledger_conversation_turn_id ON ledger (conversation, turn_id);

CREATE TABLE pairing (
	id BIGSERIAL NOT NULL,
	code TEXT NOT NULL,
	platform TEXT,
	account TEXT,
	sender TEXT,
	sender_name TEXT DEFAULT '' NOT NULL,
	conversation BIGINT,
	state TEXT NOT NULL,
	expires_at DOUBLE PRECISION NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_pairing PRIMARY KEY (id),
	CONSTRAINT uq_pairing_code UNIQUE (code),
	CONSTRAINT fk_pairing_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_pairing_platform_sender ON pairing (platform, sender);

CREATE INDEX ix_pairing_conversation ON pairing (conversation);

CREATE TABLE inbox (
	conversation BIGINT NOT NULL,
	seq BIGINT NOT NULL,
	source TEXT NOT NULL,
	dedupe_key TEXT NOT NULL,
	kind TEXT NOT NULL,
	sender TEXT NOT NULL,
	sender_name TEXT NOT NULL,
	text TEXT NOT NULL,
	message_ref TEXT,
	raw TEXT,
	state TEXT NOT NULL,
	turn_id BIGINT,
	at DOUBLE PRECISION NOT NULL,
	command TEXT,
	authors TEXT,
	CONSTRAINT pk_inbox PRIMARY KEY (conversation, seq),
	CONSTRAINT uq_inbox_source_dedupe_key UNIQUE (source, dedupe_key),
	CONSTRAINT fk_inbox_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_inbox_noted ON inbox (conversation, seq) WHERE state = 'noted';

CREATE INDEX ix_inbox_conversation_message_ref ON inbox (conversation, message_ref) WHERE message_ref IS NOT NULL;

CREATE INDEX ix_inbox_pending ON inbox (conversation, seq) WHERE state IN ('queued', 'taken');

CREATE INDEX ix_inbox_sender_at ON inbox (sender, at) WHERE kind IN ('message', 'command');

CREATE INDEX ix_inbox_raw_at ON inbox (at) WHERE raw IS NOT NULL;

CREATE TABLE outbox (
	conversation BIGINT NOT NULL,
	seq BIGINT NOT NULL,
	source_key TEXT NOT NULL,
	inbox_seq BIGINT NOT NULL,
	turn_id BIGINT,
	payload TEXT NOT NULL,
	markdown TEXT,
	preview_ref TEXT,
	reply_to TEXT,
	choices TEXT,
	attachment BIGINT,
	state TEXT NOT NULL,
	doubt BOOLEAN DEFAULT false NOT NULL,
	failures BIGINT DEFAULT '0' NOT NULL,
	sender BIGINT,
	next_at DOUBLE PRECISION DEFAULT '0' NOT NULL,
	platform_ref TEXT,
	resent BOOLEAN DEFAULT false NOT NULL,
	error TEXT,
	at DOUBLE PRECISION NOT NULL,
	sent_at DOUBLE PRECISION,
	CONSTRAINT pk_outbox PRIMARY KEY (conversation, seq),
	CONSTRAINT fk_outbox_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id),
	CONSTRAINT uq_outbox_source_key UNIQUE (source_key)
);

CREATE INDEX ix_outbox_unsent ON outbox (conversation, seq) WHERE state IN ('pending', 'sending', 'unknown');

CREATE INDEX ix_outbox_dead ON outbox (at, conversation, seq) WHERE state = 'dead';

CREATE TABLE inquiry (
	id BIGSERIAL NOT NULL,
	conversation BIGINT NOT NULL,
	turn_id BIGINT NOT NULL,
	call_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	tool TEXT NOT NULL,
	definition TEXT NOT NULL,
	question TEXT NOT NULL,
	choices TEXT DEFAULT '[]' NOT NULL,
	state TEXT NOT NULL,
	answer TEXT,
	answered_by TEXT,
	expires_at DOUBLE PRECISION NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	answered_at DOUBLE PRECISION,
	for_owners BOOLEAN DEFAULT false NOT NULL,
	rule TEXT,
	CONSTRAINT pk_inquiry PRIMARY KEY (id),
	CONSTRAINT uq_inquiry_turn_id_call_id UNIQUE (turn_id, call_id),
	CONSTRAINT fk_inquiry_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_inquiry_pending ON inquiry (conversation) WHERE state = 'pending';

CREATE INDEX ix_inquiry_conversation ON inquiry (conversation);

CREATE TABLE view_plan (
	session_id BIGINT NOT NULL,
	body TEXT NOT NULL,
	CONSTRAINT pk_view_plan PRIMARY KEY (session_id),
	CONSTRAINT fk_view_plan_session_id_session FOREIGN KEY(session_id) REFERENCES session (id)
);

CREATE TABLE compaction (
	id BIGSERIAL NOT NULL,
	conversation BIGINT NOT NULL,
	parent_session_id BIGINT NOT NULL,
	child_session_id BIGINT NOT NULL,
	trigger TEXT NOT NULL,
	engine TEXT NOT NULL,
	level TEXT NOT NULL,
	messages_before BIGINT NOT NULL,
	messages_after BIGINT NOT NULL,
	tokens_before BIGINT NOT NULL,
	tokens_after BIGINT NOT NULL,
	tokens_after_reported BIGINT,
	summary_model TEXT,
	retained_share DOUBLE PRECISION,
	cache_tokens_lost BIGINT NOT NULL,
	failure TEXT,
	duration_ms BIGINT NOT NULL,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_compaction PRIMARY KEY (id),
	CONSTRAINT fk_compaction_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id),
	CONSTRAINT uq_compaction_parent_session_id UNIQUE (parent_session_id),
	CONSTRAINT fk_compaction_parent_session_id_session FOREIGN KEY(parent_session_id) REFERENCES session (id),
	CONSTRAINT uq_compaction_child_session_id UNIQUE (child_session_id),
	CONSTRAINT fk_compaction_child_session_id_session FOREIGN KEY(child_session_id) REFERENCES session (id)
);

CREATE INDEX ix_compaction_conversation ON compaction (conversation);

CREATE TABLE summary_candidate (
	session_id BIGINT NOT NULL,
	conversation BIGINT NOT NULL,
	first_seq BIGINT NOT NULL,
	last_seq BIGINT NOT NULL,
	text TEXT NOT NULL,
	source TEXT NOT NULL,
	model TEXT,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_summary_candidate PRIMARY KEY (session_id),
	CONSTRAINT fk_summary_candidate_session_id_session FOREIGN KEY(session_id) REFERENCES session (id),
	CONSTRAINT fk_summary_candidate_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_summary_candidate_conversation ON summary_candidate (conversation);

CREATE TABLE attachment_part (
	attachment BIGINT NOT NULL,
	n BIGINT NOT NULL,
	body BYTEA NOT NULL,
	CONSTRAINT pk_attachment_part PRIMARY KEY (attachment, n),
	CONSTRAINT fk_attachment_part_attachment_attachment FOREIGN KEY(attachment) REFERENCES attachment (id)
);

CREATE TABLE turn (
	id BIGSERIAL NOT NULL,
	conversation BIGINT NOT NULL,
	session_id BIGINT NOT NULL,
	first_seq BIGINT NOT NULL,
	upto_seq BIGINT NOT NULL,
	state TEXT NOT NULL,
	outcome TEXT,
	error TEXT,
	epoch BIGINT NOT NULL,
	attempt BIGINT NOT NULL,
	progress BIGINT DEFAULT '0' NOT NULL,
	attempt_progress BIGINT DEFAULT '0' NOT NULL,
	preview_ref TEXT,
	model TEXT,
	iterations BIGINT DEFAULT '0' NOT NULL,
	tool_calls BIGINT DEFAULT '0' NOT NULL,
	input_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_read_tokens BIGINT DEFAULT '0' NOT NULL,
	cache_write_tokens BIGINT DEFAULT '0' NOT NULL,
	output_tokens BIGINT DEFAULT '0' NOT NULL,
	started_at DOUBLE PRECISION NOT NULL,
	finished_at DOUBLE PRECISION,
	usd DOUBLE PRECISION,
	senders TEXT,
	attempt_at DOUBLE PRECISION,
	deaths BIGINT DEFAULT '0' NOT NULL,
	blamed BIGINT DEFAULT '0' NOT NULL,
	quiet_s DOUBLE PRECISION DEFAULT '0' NOT NULL,
	troubled_at DOUBLE PRECISION,
	retries BIGINT,
	CONSTRAINT pk_turn PRIMARY KEY (id),
	CONSTRAINT fk_turn_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id),
	CONSTRAINT fk_turn_session_id_session FOREIGN KEY(session_id) REFERENCES session (id)
);

CREATE INDEX ix_turn_conversation_id ON turn (conversation, id);

CREATE INDEX ix_turn_dead ON turn (finished_at, id) WHERE state = 'dead';

CREATE INDEX ix_turn_session_id ON turn (session_id);

CREATE UNIQUE INDEX uq_turn_running ON turn (conversation) WHERE state = 'running';

CREATE TABLE step (
	turn_id BIGINT NOT NULL,
	n BIGINT NOT NULL,
	kind TEXT NOT NULL,
	name TEXT NOT NULL,
	call_id TEXT,
	effect TEXT,
	request_hash TEXT,
	state TEXT NOT NULL,
	result TEXT,
	at DOUBLE PRECISION NOT NULL,
	CONSTRAINT pk_step PRIMARY KEY (turn_id, n),
	CONSTRAINT fk_step_turn_id_turn FOREIGN KEY(turn_id) REFERENCES turn (id)
);

CREATE INDEX ix_step_tool ON step (turn_id, name, at) WHERE kind = 'tool';

CREATE FUNCTION ledger_insert() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO spent_slot (slot, provider, model, size, bucket, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (cast(floor(NEW.at / 900) AS BIGINT), NEW.provider, NEW.model, CASE WHEN (NEW.purpose = 'answer' AND NOT NEW.estimated) THEN 1 + 5 * (((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 512)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 1024)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 2048)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 4096)::int) + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 512)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 1024)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 2048)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END, NEW.conversation % 8, (1), (NEW.input_tokens), (NEW.output_tokens), (NEW.cache_read_tokens), (NEW.cache_write_5m_tokens), (NEW.cache_write_1h_tokens), (coalesce(cast(round(NEW.usd * 1000000000000) AS BIGINT), 0)), ((NEW.usd IS NOT NULL)::int), ((NEW.estimated AND NEW.usd IS NOT NULL)::int), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens)), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.input_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_read_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_write_5m_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_write_1h_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END))) ON CONFLICT (slot, provider, model, size, bucket) DO UPDATE SET calls = spent_slot.calls + excluded.calls, input_tokens = spent_slot.input_tokens + excluded.input_tokens, output_tokens = spent_slot.output_tokens + excluded.output_tokens, cache_read_tokens = spent_slot.cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = spent_slot.cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = spent_slot.cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = spent_slot.pico_usd + excluded.pico_usd, priced = spent_slot.priced + excluded.priced, estimates = spent_slot.estimates + excluded.estimates, answers = spent_slot.answers + excluded.answers, answer_prompt = spent_slot.answer_prompt + excluded.answer_prompt, answer_input = spent_slot.answer_input + excluded.answer_input, answer_read = spent_slot.answer_read + excluded.answer_read, answer_5m = spent_slot.answer_5m + excluded.answer_5m, answer_1h = spent_slot.answer_1h + excluded.answer_1h, answer_known = spent_slot.answer_known + excluded.answer_known; INSERT INTO spent_by (sender, slot, conversation, provider, model, size, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (NEW.sender, cast(floor(NEW.at / 900) AS BIGINT), NEW.conversation, NEW.provider, NEW.model, CASE WHEN (NEW.purpose = 'answer' AND NOT NEW.estimated) THEN 1 + 5 * (((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 512)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 1024)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 2048)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 4096)::int) + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 512)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 1024)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 2048)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END, (1), (NEW.input_tokens), (NEW.output_tokens), (NEW.cache_read_tokens), (NEW.cache_write_5m_tokens), (NEW.cache_write_1h_tokens), (coalesce(cast(round(NEW.usd * 1000000000000) AS BIGINT), 0)), ((NEW.usd IS NOT NULL)::int), ((NEW.estimated AND NEW.usd IS NOT NULL)::int), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens)), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.input_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_read_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_write_5m_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_write_1h_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END))) ON CONFLICT (sender, slot, conversation, provider, model, size) DO UPDATE SET calls = spent_by.calls + excluded.calls, input_tokens = spent_by.input_tokens + excluded.input_tokens, output_tokens = spent_by.output_tokens + excluded.output_tokens, cache_read_tokens = spent_by.cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = spent_by.cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = spent_by.cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = spent_by.pico_usd + excluded.pico_usd, priced = spent_by.priced + excluded.priced, estimates = spent_by.estimates + excluded.estimates, answers = spent_by.answers + excluded.answers, answer_prompt = spent_by.answer_prompt + excluded.answer_prompt, answer_input = spent_by.answer_input + excluded.answer_input, answer_read = spent_by.answer_read + excluded.answer_read, answer_5m = spent_by.answer_5m + excluded.answer_5m, answer_1h = spent_by.answer_1h + excluded.answer_1h, answer_known = spent_by.answer_known + excluded.answer_known; RETURN NULL; END $$; CREATE TRIGGER ledger_insert AFTER INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_insert();

CREATE FUNCTION ledger_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO spent_slot (slot, provider, model, size, bucket, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (cast(floor(OLD.at / 900) AS BIGINT), OLD.provider, OLD.model, CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)::int) + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END, OLD.conversation % 8, -(1), -(OLD.input_tokens), -(OLD.output_tokens), -(OLD.cache_read_tokens), -(OLD.cache_write_5m_tokens), -(OLD.cache_write_1h_tokens), -(coalesce(cast(round(OLD.usd * 1000000000000) AS BIGINT), 0)), -((OLD.usd IS NOT NULL)::int), -((OLD.estimated AND OLD.usd IS NOT NULL)::int), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens)), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.input_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_read_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_write_5m_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_write_1h_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END))) ON CONFLICT (slot, provider, model, size, bucket) DO UPDATE SET calls = spent_slot.calls + excluded.calls, input_tokens = spent_slot.input_tokens + excluded.input_tokens, output_tokens = spent_slot.output_tokens + excluded.output_tokens, cache_read_tokens = spent_slot.cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = spent_slot.cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = spent_slot.cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = spent_slot.pico_usd + excluded.pico_usd, priced = spent_slot.priced + excluded.priced, estimates = spent_slot.estimates + excluded.estimates, answers = spent_slot.answers + excluded.answers, answer_prompt = spent_slot.answer_prompt + excluded.answer_prompt, answer_input = spent_slot.answer_input + excluded.answer_input, answer_read = spent_slot.answer_read + excluded.answer_read, answer_5m = spent_slot.answer_5m + excluded.answer_5m, answer_1h = spent_slot.answer_1h + excluded.answer_1h, answer_known = spent_slot.answer_known + excluded.answer_known; DELETE FROM spent_slot WHERE slot = cast(floor(OLD.at / 900) AS BIGINT) AND provider = OLD.provider AND model = OLD.model AND size = CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)::int) + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END AND bucket = OLD.conversation % 8 AND calls = 0; INSERT INTO spent_by (sender, slot, conversation, provider, model, size, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (OLD.sender, cast(floor(OLD.at / 900) AS BIGINT), OLD.conversation, OLD.provider, OLD.model, CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)::int) + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END, -(1), -(OLD.input_tokens), -(OLD.output_tokens), -(OLD.cache_read_tokens), -(OLD.cache_write_5m_tokens), -(OLD.cache_write_1h_tokens), -(coalesce(cast(round(OLD.usd * 1000000000000) AS BIGINT), 0)), -((OLD.usd IS NOT NULL)::int), -((OLD.estimated AND OLD.usd IS NOT NULL)::int), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens)), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.input_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_read_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_write_5m_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_write_1h_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END))) ON CONFLICT (sender, slot, conversation, provider, model, size) DO UPDATE SET calls = spent_by.calls + excluded.calls, input_tokens = spent_by.input_tokens + excluded.input_tokens, output_tokens = spent_by.output_tokens + excluded.output_tokens, cache_read_tokens = spent_by.cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = spent_by.cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = spent_by.cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = spent_by.pico_usd + excluded.pico_usd, priced = spent_by.priced + excluded.priced, estimates = spent_by.estimates + excluded.estimates, answers = spent_by.answers + excluded.answers, answer_prompt = spent_by.answer_prompt + excluded.answer_prompt, answer_input = spent_by.answer_input + excluded.answer_input, answer_read = spent_by.answer_read + excluded.answer_read, answer_5m = spent_by.answer_5m + excluded.answer_5m, answer_1h = spent_by.answer_1h + excluded.answer_1h, answer_known = spent_by.answer_known + excluded.answer_known; DELETE FROM spent_by WHERE sender = OLD.sender AND slot = cast(floor(OLD.at / 900) AS BIGINT) AND conversation = OLD.conversation AND provider = OLD.provider AND model = OLD.model AND size = CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)::int) + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END AND calls = 0; RETURN NULL; END $$; CREATE TRIGGER ledger_delete AFTER DELETE ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_delete();

CREATE FUNCTION ledger_update() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO spent_slot (slot, provider, model, size, bucket, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (cast(floor(OLD.at / 900) AS BIGINT), OLD.provider, OLD.model, CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)::int) + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END, OLD.conversation % 8, -(1), -(OLD.input_tokens), -(OLD.output_tokens), -(OLD.cache_read_tokens), -(OLD.cache_write_5m_tokens), -(OLD.cache_write_1h_tokens), -(coalesce(cast(round(OLD.usd * 1000000000000) AS BIGINT), 0)), -((OLD.usd IS NOT NULL)::int), -((OLD.estimated AND OLD.usd IS NOT NULL)::int), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens)), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.input_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_read_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_write_5m_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_write_1h_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END))) ON CONFLICT (slot, provider, model, size, bucket) DO UPDATE SET calls = spent_slot.calls + excluded.calls, input_tokens = spent_slot.input_tokens + excluded.input_tokens, output_tokens = spent_slot.output_tokens + excluded.output_tokens, cache_read_tokens = spent_slot.cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = spent_slot.cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = spent_slot.cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = spent_slot.pico_usd + excluded.pico_usd, priced = spent_slot.priced + excluded.priced, estimates = spent_slot.estimates + excluded.estimates, answers = spent_slot.answers + excluded.answers, answer_prompt = spent_slot.answer_prompt + excluded.answer_prompt, answer_input = spent_slot.answer_input + excluded.answer_input, answer_read = spent_slot.answer_read + excluded.answer_read, answer_5m = spent_slot.answer_5m + excluded.answer_5m, answer_1h = spent_slot.answer_1h + excluded.answer_1h, answer_known = spent_slot.answer_known + excluded.answer_known; DELETE FROM spent_slot WHERE slot = cast(floor(OLD.at / 900) AS BIGINT) AND provider = OLD.provider AND model = OLD.model AND size = CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)::int) + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END AND bucket = OLD.conversation % 8 AND calls = 0; INSERT INTO spent_by (sender, slot, conversation, provider, model, size, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (OLD.sender, cast(floor(OLD.at / 900) AS BIGINT), OLD.conversation, OLD.provider, OLD.model, CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)::int) + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END, -(1), -(OLD.input_tokens), -(OLD.output_tokens), -(OLD.cache_read_tokens), -(OLD.cache_write_5m_tokens), -(OLD.cache_write_1h_tokens), -(coalesce(cast(round(OLD.usd * 1000000000000) AS BIGINT), 0)), -((OLD.usd IS NOT NULL)::int), -((OLD.estimated AND OLD.usd IS NOT NULL)::int), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens)), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.input_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_read_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_write_5m_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * OLD.cache_write_1h_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated)::int * greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END))) ON CONFLICT (sender, slot, conversation, provider, model, size) DO UPDATE SET calls = spent_by.calls + excluded.calls, input_tokens = spent_by.input_tokens + excluded.input_tokens, output_tokens = spent_by.output_tokens + excluded.output_tokens, cache_read_tokens = spent_by.cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = spent_by.cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = spent_by.cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = spent_by.pico_usd + excluded.pico_usd, priced = spent_by.priced + excluded.priced, estimates = spent_by.estimates + excluded.estimates, answers = spent_by.answers + excluded.answers, answer_prompt = spent_by.answer_prompt + excluded.answer_prompt, answer_input = spent_by.answer_input + excluded.answer_input, answer_read = spent_by.answer_read + excluded.answer_read, answer_5m = spent_by.answer_5m + excluded.answer_5m, answer_1h = spent_by.answer_1h + excluded.answer_1h, answer_known = spent_by.answer_known + excluded.answer_known; DELETE FROM spent_by WHERE sender = OLD.sender AND slot = cast(floor(OLD.at / 900) AS BIGINT) AND conversation = OLD.conversation AND provider = OLD.provider AND model = OLD.model AND size = CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048)::int + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)::int) + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048)::int + (greatest(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END AND calls = 0; INSERT INTO spent_slot (slot, provider, model, size, bucket, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (cast(floor(NEW.at / 900) AS BIGINT), NEW.provider, NEW.model, CASE WHEN (NEW.purpose = 'answer' AND NOT NEW.estimated) THEN 1 + 5 * (((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 512)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 1024)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 2048)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 4096)::int) + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 512)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 1024)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 2048)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END, NEW.conversation % 8, (1), (NEW.input_tokens), (NEW.output_tokens), (NEW.cache_read_tokens), (NEW.cache_write_5m_tokens), (NEW.cache_write_1h_tokens), (coalesce(cast(round(NEW.usd * 1000000000000) AS BIGINT), 0)), ((NEW.usd IS NOT NULL)::int), ((NEW.estimated AND NEW.usd IS NOT NULL)::int), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens)), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.input_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_read_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_write_5m_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_write_1h_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END))) ON CONFLICT (slot, provider, model, size, bucket) DO UPDATE SET calls = spent_slot.calls + excluded.calls, input_tokens = spent_slot.input_tokens + excluded.input_tokens, output_tokens = spent_slot.output_tokens + excluded.output_tokens, cache_read_tokens = spent_slot.cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = spent_slot.cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = spent_slot.cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = spent_slot.pico_usd + excluded.pico_usd, priced = spent_slot.priced + excluded.priced, estimates = spent_slot.estimates + excluded.estimates, answers = spent_slot.answers + excluded.answers, answer_prompt = spent_slot.answer_prompt + excluded.answer_prompt, answer_input = spent_slot.answer_input + excluded.answer_input, answer_read = spent_slot.answer_read + excluded.answer_read, answer_5m = spent_slot.answer_5m + excluded.answer_5m, answer_1h = spent_slot.answer_1h + excluded.answer_1h, answer_known = spent_slot.answer_known + excluded.answer_known; INSERT INTO spent_by (sender, slot, conversation, provider, model, size, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (NEW.sender, cast(floor(NEW.at / 900) AS BIGINT), NEW.conversation, NEW.provider, NEW.model, CASE WHEN (NEW.purpose = 'answer' AND NOT NEW.estimated) THEN 1 + 5 * (((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 512)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 1024)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 2048)::int + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 4096)::int) + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 512)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 1024)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 2048)::int + (greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 4096)::int ELSE 0 END, (1), (NEW.input_tokens), (NEW.output_tokens), (NEW.cache_read_tokens), (NEW.cache_write_5m_tokens), (NEW.cache_write_1h_tokens), (coalesce(cast(round(NEW.usd * 1000000000000) AS BIGINT), 0)), ((NEW.usd IS NOT NULL)::int), ((NEW.estimated AND NEW.usd IS NOT NULL)::int), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens)), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.input_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_read_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_write_5m_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * NEW.cache_write_1h_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated)::int * greatest(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END))) ON CONFLICT (sender, slot, conversation, provider, model, size) DO UPDATE SET calls = spent_by.calls + excluded.calls, input_tokens = spent_by.input_tokens + excluded.input_tokens, output_tokens = spent_by.output_tokens + excluded.output_tokens, cache_read_tokens = spent_by.cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = spent_by.cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = spent_by.cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = spent_by.pico_usd + excluded.pico_usd, priced = spent_by.priced + excluded.priced, estimates = spent_by.estimates + excluded.estimates, answers = spent_by.answers + excluded.answers, answer_prompt = spent_by.answer_prompt + excluded.answer_prompt, answer_input = spent_by.answer_input + excluded.answer_input, answer_read = spent_by.answer_read + excluded.answer_read, answer_5m = spent_by.answer_5m + excluded.answer_5m, answer_1h = spent_by.answer_1h + excluded.answer_1h, answer_known = spent_by.answer_known + excluded.answer_known; RETURN NULL; END $$; CREATE TRIGGER ledger_update AFTER UPDATE ON ledger FOR EACH ROW EXECUTE FUNCTION ledger_update();

CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY);

INSERT INTO alembic_version VALUES ('0034');

COMMENT ON TABLE alembic_version IS '0034';
