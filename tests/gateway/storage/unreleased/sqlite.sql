CREATE TABLE prompt_text (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	digest BLOB NOT NULL,
	body TEXT NOT NULL,
	CONSTRAINT uq_prompt_text_digest UNIQUE (digest)
);

CREATE TABLE summary_part (
	conversation INTEGER NOT NULL,
	"key" TEXT NOT NULL,
	text TEXT NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT pk_summary_part PRIMARY KEY (conversation, "key")
);

CREATE INDEX ix_summary_part_at ON summary_part (at);

CREATE TABLE model_window (
	model TEXT NOT NULL,
	believed INTEGER NOT NULL,
	context_length INTEGER NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT pk_model_window PRIMARY KEY (model)
);

CREATE TABLE spent_slot (
	slot INTEGER NOT NULL,
	provider TEXT NOT NULL,
	model TEXT NOT NULL,
	size INTEGER NOT NULL,
	bucket INTEGER NOT NULL,
	calls INTEGER DEFAULT '0' NOT NULL,
	input_tokens INTEGER DEFAULT '0' NOT NULL,
	output_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_read_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_write_5m_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_write_1h_tokens INTEGER DEFAULT '0' NOT NULL,
	pico_usd INTEGER DEFAULT '0' NOT NULL,
	priced INTEGER DEFAULT '0' NOT NULL,
	estimates INTEGER DEFAULT '0' NOT NULL,
	answers INTEGER DEFAULT '0' NOT NULL,
	answer_prompt INTEGER DEFAULT '0' NOT NULL,
	answer_input INTEGER DEFAULT '0' NOT NULL,
	answer_read INTEGER DEFAULT '0' NOT NULL,
	answer_5m INTEGER DEFAULT '0' NOT NULL,
	answer_1h INTEGER DEFAULT '0' NOT NULL,
	answer_known INTEGER DEFAULT '0' NOT NULL,
	CONSTRAINT pk_spent_slot PRIMARY KEY (slot, provider, model, size, bucket)
)
 WITHOUT ROWID;

CREATE TABLE spent_by (
	sender TEXT NOT NULL,
	slot INTEGER NOT NULL,
	conversation INTEGER NOT NULL,
	provider TEXT NOT NULL,
	model TEXT NOT NULL,
	size INTEGER NOT NULL,
	calls INTEGER DEFAULT '0' NOT NULL,
	input_tokens INTEGER DEFAULT '0' NOT NULL,
	output_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_read_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_write_5m_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_write_1h_tokens INTEGER DEFAULT '0' NOT NULL,
	pico_usd INTEGER DEFAULT '0' NOT NULL,
	priced INTEGER DEFAULT '0' NOT NULL,
	estimates INTEGER DEFAULT '0' NOT NULL,
	answers INTEGER DEFAULT '0' NOT NULL,
	answer_prompt INTEGER DEFAULT '0' NOT NULL,
	answer_input INTEGER DEFAULT '0' NOT NULL,
	answer_read INTEGER DEFAULT '0' NOT NULL,
	answer_5m INTEGER DEFAULT '0' NOT NULL,
	answer_1h INTEGER DEFAULT '0' NOT NULL,
	answer_known INTEGER DEFAULT '0' NOT NULL,
	CONSTRAINT pk_spent_by PRIMARY KEY (sender, slot, conversation, provider, model, size)
)
 WITHOUT ROWID;

CREATE TABLE member (
	platform TEXT NOT NULL,
	sender TEXT NOT NULL,
	sender_name TEXT NOT NULL,
	role TEXT NOT NULL,
	granted_by TEXT NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT pk_member PRIMARY KEY (platform, sender)
);

CREATE INDEX ix_member_at ON member (at, platform, sender);

CREATE TABLE web_user (
	name TEXT NOT NULL,
	role TEXT NOT NULL,
	same_as TEXT,
	invited_by TEXT NOT NULL,
	at DOUBLE NOT NULL,
	identity TEXT,
	let_in_by TEXT,
	CONSTRAINT pk_web_user PRIMARY KEY (name)
);

CREATE UNIQUE INDEX ux_web_user_identity ON web_user (identity);

CREATE TABLE web_session (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	hash TEXT NOT NULL,
	sender TEXT NOT NULL,
	signed_in_by TEXT NOT NULL,
	address TEXT NOT NULL,
	browser TEXT NOT NULL,
	at DOUBLE NOT NULL,
	used_at DOUBLE NOT NULL,
	expires_at DOUBLE NOT NULL,
	CONSTRAINT uq_web_session_hash UNIQUE (hash)
);

CREATE INDEX ix_web_session_sender ON web_session (sender);

CREATE TABLE web_link (
	hash TEXT NOT NULL,
	sender TEXT NOT NULL,
	expires_at DOUBLE NOT NULL,
	CONSTRAINT pk_web_link PRIMARY KEY (hash)
);

CREATE TABLE memory (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	scope TEXT NOT NULL,
	target TEXT NOT NULL,
	text TEXT NOT NULL,
	at DOUBLE NOT NULL,
	subject TEXT,
	value TEXT,
	said_by TEXT,
	conversation INTEGER,
	seq INTEGER,
	ended_at DOUBLE,
	ended_by INTEGER,
	turn_id INTEGER,
	told_at DOUBLE
);

CREATE INDEX ix_memory_conversation ON memory (conversation) WHERE conversation IS NOT NULL;

CREATE INDEX ix_memory_turn_id ON memory (turn_id) WHERE turn_id IS NOT NULL;

CREATE INDEX ix_memory_scope ON memory (scope);

CREATE TABLE audit_row (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	at DOUBLE NOT NULL,
	kind TEXT NOT NULL,
	conversation INTEGER,
	said TEXT
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
	told_at DOUBLE,
	"by" TEXT DEFAULT '' NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT pk_mcp_text PRIMARY KEY (digest)
);

CREATE TABLE replica (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	name TEXT NOT NULL,
	heartbeat_until DOUBLE NOT NULL
);

CREATE TABLE adapter_lease (
	platform TEXT NOT NULL,
	account TEXT NOT NULL,
	shard INTEGER NOT NULL,
	owner INTEGER,
	epoch INTEGER DEFAULT '0' NOT NULL,
	CONSTRAINT pk_adapter_lease PRIMARY KEY (platform, account, shard)
);

CREATE TABLE identity (
	name TEXT NOT NULL,
	commits INTEGER NOT NULL,
	CONSTRAINT pk_identity PRIMARY KEY (name)
);

CREATE TABLE quarantine (
	id INTEGER NOT NULL,
	source TEXT NOT NULL,
	dedupe_key TEXT NOT NULL,
	raw TEXT NOT NULL,
	reason TEXT NOT NULL,
	at DOUBLE NOT NULL,
	chat TEXT,
	CONSTRAINT pk_quarantine PRIMARY KEY (id),
	CONSTRAINT uq_quarantine_source_dedupe_key UNIQUE (source, dedupe_key)
);

CREATE INDEX ix_quarantine_raw_at ON quarantine (at) WHERE raw != '';

CREATE TABLE cursor (
	source TEXT NOT NULL,
	position INTEGER NOT NULL,
	CONSTRAINT pk_cursor PRIMARY KEY (source)
);

CREATE TABLE news (
	kind TEXT NOT NULL,
	n INTEGER NOT NULL,
	CONSTRAINT pk_news PRIMARY KEY (kind)
);

CREATE TABLE chat_watch (
	session_key TEXT NOT NULL,
	replica INTEGER NOT NULL,
	until DOUBLE NOT NULL,
	CONSTRAINT pk_chat_watch PRIMARY KEY (session_key, replica)
);

CREATE TABLE chat_preview (
	session_key TEXT NOT NULL,
	text TEXT NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT pk_chat_preview PRIMARY KEY (session_key)
);

CREATE TABLE alert (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	kind TEXT NOT NULL,
	subject TEXT NOT NULL,
	text TEXT NOT NULL,
	since DOUBLE NOT NULL,
	at DOUBLE NOT NULL,
	seen_at DOUBLE NOT NULL,
	told_at DOUBLE,
	over_at DOUBLE,
	over_told_at DOUBLE,
	posted INTEGER DEFAULT '0' NOT NULL,
	post_at DOUBLE DEFAULT '0' NOT NULL
);

CREATE INDEX ix_alert_at ON alert (at);

CREATE UNIQUE INDEX ux_alert_open ON alert (kind, subject) WHERE over_at IS NULL;

CREATE TABLE conversation (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	platform TEXT NOT NULL,
	account TEXT NOT NULL,
	chat TEXT NOT NULL,
	thread TEXT,
	user TEXT,
	title TEXT DEFAULT '' NOT NULL,
	active_session_id INTEGER,
	created_at DOUBLE NOT NULL,
	inbox_head INTEGER DEFAULT '0' NOT NULL,
	outbox_head INTEGER DEFAULT '0' NOT NULL,
	message_head INTEGER DEFAULT '0' NOT NULL,
	owner INTEGER,
	epoch INTEGER DEFAULT '0' NOT NULL,
	ready_no INTEGER,
	turn_not_before DOUBLE DEFAULT '0' NOT NULL,
	cancel_upto_seq INTEGER DEFAULT '0' NOT NULL,
	parent_turn_id INTEGER,
	parent_call_id TEXT,
	model TEXT,
	searched_seq INTEGER DEFAULT '0' NOT NULL,
	CONSTRAINT fk_conversation_owner_replica FOREIGN KEY(owner) REFERENCES replica (id)
);

CREATE UNIQUE INDEX uq_conversation_parent_turn_id_parent_call_id ON conversation (parent_turn_id, parent_call_id) WHERE parent_turn_id IS NOT NULL;

CREATE INDEX ix_conversation_ready ON conversation (ready_no) WHERE owner IS NULL AND ready_no IS NOT NULL;

CREATE INDEX ix_conversation_platform_user ON conversation (platform, user) WHERE "user" IS NOT NULL;

CREATE INDEX ix_conversation_owner ON conversation (owner) WHERE owner IS NOT NULL;

CREATE INDEX ix_conversation_unsearched ON conversation (id) WHERE message_head > searched_seq;

CREATE TABLE prompt_base (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	digest BLOB NOT NULL,
	prompt_id INTEGER NOT NULL,
	tools_id INTEGER,
	layers TEXT NOT NULL,
	inputs TEXT,
	CONSTRAINT uq_prompt_base_digest UNIQUE (digest),
	CONSTRAINT fk_prompt_base_prompt_id_prompt_text FOREIGN KEY(prompt_id) REFERENCES prompt_text (id),
	CONSTRAINT fk_prompt_base_tools_id_prompt_text FOREIGN KEY(tools_id) REFERENCES prompt_text (id)
);

CREATE INDEX ix_prompt_base_prompt_id ON prompt_base (prompt_id);

CREATE INDEX ix_prompt_base_tools_id ON prompt_base (tools_id);

CREATE TABLE alias (
	session_key TEXT NOT NULL,
	conversation INTEGER NOT NULL,
	CONSTRAINT pk_alias PRIMARY KEY (session_key),
	CONSTRAINT fk_alias_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_alias_conversation ON alias (conversation);

CREATE TABLE session (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	conversation INTEGER NOT NULL,
	parent_session_id INTEGER,
	start_reason TEXT NOT NULL,
	end_reason TEXT,
	prompt_tokens INTEGER,
	prompt_upto_seq INTEGER,
	started_at DOUBLE NOT NULL,
	ended_at DOUBLE,
	number INTEGER DEFAULT '1' NOT NULL,
	prompt_output_tokens INTEGER,
	report_model TEXT,
	token_ratio DOUBLE DEFAULT '1' NOT NULL,
	planner_state TEXT DEFAULT '{}' NOT NULL,
	prefix TEXT,
	moved TEXT,
	base_id INTEGER,
	own_prompt TEXT,
	origins TEXT,
	CONSTRAINT fk_session_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id),
	CONSTRAINT uq_session_parent_session_id UNIQUE (parent_session_id),
	CONSTRAINT fk_session_parent_session_id_session FOREIGN KEY(parent_session_id) REFERENCES session (id),
	CONSTRAINT fk_session_base_id_prompt_base FOREIGN KEY(base_id) REFERENCES prompt_base (id)
);

CREATE INDEX ix_session_conversation ON session (conversation);

CREATE INDEX ix_session_base_id ON session (base_id) WHERE base_id IS NOT NULL;

CREATE TABLE node (
	conversation INTEGER NOT NULL,
	number INTEGER NOT NULL,
	level INTEGER NOT NULL,
	first_seq INTEGER NOT NULL,
	last_seq INTEGER NOT NULL,
	children TEXT DEFAULT '[]' NOT NULL,
	text TEXT NOT NULL,
	source TEXT NOT NULL,
	tokens INTEGER NOT NULL,
	source_tokens INTEGER NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT pk_node PRIMARY KEY (conversation, number),
	CONSTRAINT fk_node_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE TABLE message (
	conversation INTEGER NOT NULL,
	seq INTEGER NOT NULL,
	session_id INTEGER NOT NULL,
	turn_id INTEGER,
	role TEXT NOT NULL,
	body TEXT NOT NULL,
	tokens INTEGER NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT pk_message PRIMARY KEY (conversation, seq),
	CONSTRAINT fk_message_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE TABLE blob (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	conversation INTEGER NOT NULL,
	turn_id INTEGER,
	body TEXT NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT fk_blob_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_blob_conversation ON blob (conversation);

CREATE TABLE search_row (
	conversation INTEGER NOT NULL,
	seq INTEGER NOT NULL,
	role TEXT NOT NULL,
	at DOUBLE NOT NULL,
	terms INTEGER NOT NULL,
	CONSTRAINT pk_search_row PRIMARY KEY (conversation, seq),
	CONSTRAINT fk_search_row_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
)
 WITHOUT ROWID;

CREATE VIRTUAL TABLE search_index USING fts5(terms, content='', columnsize=0, detail=none, tokenize="ascii tokenchars '='");

CREATE TABLE topic (
	conversation INTEGER NOT NULL,
	first_seq INTEGER NOT NULL,
	last_seq INTEGER NOT NULL,
	text TEXT NOT NULL,
	terms TEXT NOT NULL,
	messages INTEGER NOT NULL,
	at DOUBLE NOT NULL,
	last_at DOUBLE NOT NULL,
	CONSTRAINT pk_topic PRIMARY KEY (conversation, first_seq),
	CONSTRAINT fk_topic_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE vector (
	conversation INTEGER NOT NULL,
	seq INTEGER NOT NULL,
	body BLOB NOT NULL,
	CONSTRAINT pk_vector PRIMARY KEY (conversation, seq),
	CONSTRAINT fk_vector_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE vector_progress (
	conversation INTEGER NOT NULL,
	space TEXT NOT NULL,
	upto_seq INTEGER NOT NULL,
	claimed_until DOUBLE NOT NULL,
	CONSTRAINT pk_vector_progress PRIMARY KEY (conversation),
	CONSTRAINT fk_vector_progress_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE memory_progress (
	conversation INTEGER NOT NULL,
	upto_turn INTEGER NOT NULL,
	claimed_until DOUBLE NOT NULL,
	CONSTRAINT pk_memory_progress PRIMARY KEY (conversation),
	CONSTRAINT fk_memory_progress_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id) ON DELETE CASCADE
)
 WITHOUT ROWID;

CREATE TABLE todo (
	conversation INTEGER NOT NULL,
	items TEXT NOT NULL,
	first_seq INTEGER NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT pk_todo PRIMARY KEY (conversation),
	CONSTRAINT fk_todo_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE TABLE attachment (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	conversation INTEGER NOT NULL,
	inbox_seq INTEGER,
	turn_id INTEGER,
	name TEXT NOT NULL,
	kind TEXT NOT NULL,
	mime TEXT NOT NULL,
	size_bytes INTEGER,
	sha256 TEXT,
	ref TEXT NOT NULL,
	state TEXT NOT NULL,
	failures INTEGER DEFAULT '0' NOT NULL,
	error TEXT,
	at DOUBLE NOT NULL,
	CONSTRAINT fk_attachment_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_attachment_conversation_inbox_seq ON attachment (conversation, inbox_seq);

CREATE INDEX ix_attachment_turn_id ON attachment (turn_id);

CREATE INDEX ix_attachment_pending ON attachment (conversation) WHERE state = 'pending';

CREATE TABLE ledger (
	id INTEGER NOT NULL,
	conversation INTEGER NOT NULL,
	turn_id INTEGER,
	call_id TEXT,
	sender TEXT DEFAULT '' NOT NULL,
	provider TEXT NOT NULL,
	model TEXT NOT NULL,
	purpose TEXT NOT NULL,
	input_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_read_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_write_5m_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_write_1h_tokens INTEGER DEFAULT '0' NOT NULL,
	output_tokens INTEGER DEFAULT '0' NOT NULL,
	estimated BOOLEAN DEFAULT 0 NOT NULL,
	usd DOUBLE,
	at DOUBLE NOT NULL,
	before_tokens INTEGER DEFAULT '0' NOT NULL,
	CONSTRAINT pk_ledger PRIMARY KEY (id),
	CONSTRAINT fk_ledger_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_ledger_conversation_turn_id ON ledger (conversation, turn_id);

CREATE TABLE pairing (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	code TEXT NOT NULL,
	platform TEXT,
	account TEXT,
	sender TEXT,
	sender_name TEXT DEFAULT '' NOT NULL,
	conversation INTEGER,
	state TEXT NOT NULL,
	expires_at DOUBLE NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT uq_pairing_code UNIQUE (code),
	CONSTRAINT fk_pairing_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_pairing_platform_sender ON pairing (platform, sender);

CREATE INDEX ix_pairing_conversation ON pairing (conversation);

CREATE TABLE inbox (
	conversation INTEGER NOT NULL,
	seq INTEGER NOT NULL,
	source TEXT NOT NULL,
	dedupe_key TEXT NOT NULL,
	kind TEXT NOT NULL,
	sender TEXT NOT NULL,
	sender_name TEXT NOT NULL,
	text TEXT NOT NULL,
	message_ref TEXT,
	raw TEXT,
	state TEXT NOT NULL,
	turn_id INTEGER,
	at DOUBLE NOT NULL,
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
	conversation INTEGER NOT NULL,
	seq INTEGER NOT NULL,
	source_key TEXT NOT NULL,
	inbox_seq INTEGER NOT NULL,
	turn_id INTEGER,
	payload TEXT NOT NULL,
	markdown TEXT,
	preview_ref TEXT,
	reply_to TEXT,
	choices TEXT,
	attachment INTEGER,
	state TEXT NOT NULL,
	doubt BOOLEAN DEFAULT 0 NOT NULL,
	failures INTEGER DEFAULT '0' NOT NULL,
	sender INTEGER,
	next_at DOUBLE DEFAULT '0' NOT NULL,
	platform_ref TEXT,
	resent BOOLEAN DEFAULT 0 NOT NULL,
	error TEXT,
	at DOUBLE NOT NULL,
	sent_at DOUBLE,
	CONSTRAINT pk_outbox PRIMARY KEY (conversation, seq),
	CONSTRAINT fk_outbox_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id),
	CONSTRAINT uq_outbox_source_key UNIQUE (source_key)
);

CREATE INDEX ix_outbox_unsent ON outbox (conversation, seq) WHERE state IN ('pending', 'sending', 'unknown');

CREATE INDEX ix_outbox_dead ON outbox (at, conversation, seq) WHERE state = 'dead';

CREATE TABLE inquiry (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	conversation INTEGER NOT NULL,
	turn_id INTEGER NOT NULL,
	call_id TEXT NOT NULL,
	kind TEXT NOT NULL,
	tool TEXT NOT NULL,
	definition TEXT NOT NULL,
	question TEXT NOT NULL,
	choices TEXT DEFAULT '[]' NOT NULL,
	state TEXT NOT NULL,
	answer TEXT,
	answered_by TEXT,
	expires_at DOUBLE NOT NULL,
	at DOUBLE NOT NULL,
	answered_at DOUBLE,
	for_owners BOOLEAN DEFAULT 0 NOT NULL,
	rule TEXT,
	CONSTRAINT uq_inquiry_turn_id_call_id UNIQUE (turn_id, call_id),
	CONSTRAINT fk_inquiry_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_inquiry_pending ON inquiry (conversation) WHERE state = 'pending';

CREATE INDEX ix_inquiry_conversation ON inquiry (conversation);

CREATE TABLE view_plan (
	session_id INTEGER NOT NULL,
	body TEXT NOT NULL,
	CONSTRAINT pk_view_plan PRIMARY KEY (session_id),
	CONSTRAINT fk_view_plan_session_id_session FOREIGN KEY(session_id) REFERENCES session (id)
);

CREATE TABLE compaction (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	conversation INTEGER NOT NULL,
	parent_session_id INTEGER NOT NULL,
	child_session_id INTEGER NOT NULL,
	"trigger" TEXT NOT NULL,
	engine TEXT NOT NULL,
	level TEXT NOT NULL,
	messages_before INTEGER NOT NULL,
	messages_after INTEGER NOT NULL,
	tokens_before INTEGER NOT NULL,
	tokens_after INTEGER NOT NULL,
	tokens_after_reported INTEGER,
	summary_model TEXT,
	retained_share DOUBLE,
	cache_tokens_lost INTEGER NOT NULL,
	failure TEXT,
	duration_ms INTEGER NOT NULL,
	at DOUBLE NOT NULL,
	CONSTRAINT fk_compaction_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id),
	CONSTRAINT uq_compaction_parent_session_id UNIQUE (parent_session_id),
	CONSTRAINT fk_compaction_parent_session_id_session FOREIGN KEY(parent_session_id) REFERENCES session (id),
	CONSTRAINT uq_compaction_child_session_id UNIQUE (child_session_id),
	CONSTRAINT fk_compaction_child_session_id_session FOREIGN KEY(child_session_id) REFERENCES session (id)
);

CREATE INDEX ix_compaction_conversation ON compaction (conversation);

CREATE TABLE summary_candidate (
	session_id INTEGER NOT NULL,
	conversation INTEGER NOT NULL,
	first_seq INTEGER NOT NULL,
	last_seq INTEGER NOT NULL,
	text TEXT NOT NULL,
	source TEXT NOT NULL,
	model TEXT,
	at DOUBLE NOT NULL,
	CONSTRAINT pk_summary_candidate PRIMARY KEY (session_id),
	CONSTRAINT fk_summary_candidate_session_id_session FOREIGN KEY(session_id) REFERENCES session (id),
	CONSTRAINT fk_summary_candidate_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id)
);

CREATE INDEX ix_summary_candidate_conversation ON summary_candidate (conversation);

CREATE TABLE attachment_part (
	attachment INTEGER NOT NULL,
	n INTEGER NOT NULL,
	body BLOB NOT NULL,
	CONSTRAINT pk_attachment_part PRIMARY KEY (attachment, n),
	CONSTRAINT fk_attachment_part_attachment_attachment FOREIGN KEY(attachment) REFERENCES attachment (id)
);

CREATE TABLE turn (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	conversation INTEGER NOT NULL,
	session_id INTEGER NOT NULL,
	first_seq INTEGER NOT NULL,
	upto_seq INTEGER NOT NULL,
	state TEXT NOT NULL,
	outcome TEXT,
	error TEXT,
	epoch INTEGER NOT NULL,
	attempt INTEGER NOT NULL,
	progress INTEGER DEFAULT '0' NOT NULL,
	attempt_progress INTEGER DEFAULT '0' NOT NULL,
	preview_ref TEXT,
	model TEXT,
	iterations INTEGER DEFAULT '0' NOT NULL,
	tool_calls INTEGER DEFAULT '0' NOT NULL,
	input_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_read_tokens INTEGER DEFAULT '0' NOT NULL,
	cache_write_tokens INTEGER DEFAULT '0' NOT NULL,
	output_tokens INTEGER DEFAULT '0' NOT NULL,
	started_at DOUBLE NOT NULL,
	finished_at DOUBLE,
	usd DOUBLE,
	senders TEXT,
	attempt_at DOUBLE,
	deaths INTEGER DEFAULT '0' NOT NULL,
	blamed INTEGER DEFAULT '0' NOT NULL,
	quiet_s DOUBLE DEFAULT '0' NOT NULL,
	troubled_at DOUBLE,
	retries INTEGER,
	CONSTRAINT fk_turn_conversation_conversation FOREIGN KEY(conversation) REFERENCES conversation (id),
	CONSTRAINT fk_turn_session_id_session FOREIGN KEY(session_id) REFERENCES session (id)
);

CREATE INDEX ix_turn_conversation_id ON turn (conversation, id);

CREATE INDEX ix_turn_dead ON turn (finished_at, id) WHERE state = 'dead';

CREATE INDEX ix_turn_session_id ON turn (session_id);

CREATE UNIQUE INDEX uq_turn_running ON turn (conversation) WHERE state = 'running';

CREATE TABLE step (
	turn_id INTEGER NOT NULL,
	n INTEGER NOT NULL,
	kind TEXT NOT NULL,
	name TEXT NOT NULL,
	call_id TEXT,
	effect TEXT,
	request_hash TEXT,
	state TEXT NOT NULL,
	result TEXT,
	at DOUBLE NOT NULL,
	CONSTRAINT pk_step PRIMARY KEY (turn_id, n),
	CONSTRAINT fk_step_turn_id_turn FOREIGN KEY(turn_id) REFERENCES turn (id)
)
 WITHOUT ROWID;

CREATE INDEX ix_step_tool ON step (turn_id, name, at) WHERE kind = 'tool';

CREATE TRIGGER ledger_insert AFTER INSERT ON ledger BEGIN INSERT INTO spent_slot (slot, provider, model, size, bucket, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (cast(NEW.at / 900 AS INTEGER), NEW.provider, NEW.model, CASE WHEN (NEW.purpose = 'answer' AND NOT NEW.estimated) THEN 1 + 5 * (((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 512) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 1024) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 2048) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 4096)) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 512) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 1024) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 2048) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 4096) ELSE 0 END, NEW.conversation % 1, (1), (NEW.input_tokens), (NEW.output_tokens), (NEW.cache_read_tokens), (NEW.cache_write_5m_tokens), (NEW.cache_write_1h_tokens), (coalesce(cast(round(NEW.usd * 1000000000000) AS INTEGER), 0)), ((NEW.usd IS NOT NULL)), ((NEW.estimated AND NEW.usd IS NOT NULL)), ((NEW.purpose = 'answer' AND NOT NEW.estimated)), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens)), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.input_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_read_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_write_5m_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_write_1h_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END))) ON CONFLICT (slot, provider, model, size, bucket) DO UPDATE SET calls = calls + excluded.calls, input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens, cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = pico_usd + excluded.pico_usd, priced = priced + excluded.priced, estimates = estimates + excluded.estimates, answers = answers + excluded.answers, answer_prompt = answer_prompt + excluded.answer_prompt, answer_input = answer_input + excluded.answer_input, answer_read = answer_read + excluded.answer_read, answer_5m = answer_5m + excluded.answer_5m, answer_1h = answer_1h + excluded.answer_1h, answer_known = answer_known + excluded.answer_known; INSERT INTO spent_by (sender, slot, conversation, provider, model, size, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (NEW.sender, cast(NEW.at / 900 AS INTEGER), NEW.conversation, NEW.provider, NEW.model, CASE WHEN (NEW.purpose = 'answer' AND NOT NEW.estimated) THEN 1 + 5 * (((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 512) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 1024) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 2048) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 4096)) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 512) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 1024) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 2048) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 4096) ELSE 0 END, (1), (NEW.input_tokens), (NEW.output_tokens), (NEW.cache_read_tokens), (NEW.cache_write_5m_tokens), (NEW.cache_write_1h_tokens), (coalesce(cast(round(NEW.usd * 1000000000000) AS INTEGER), 0)), ((NEW.usd IS NOT NULL)), ((NEW.estimated AND NEW.usd IS NOT NULL)), ((NEW.purpose = 'answer' AND NOT NEW.estimated)), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens)), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.input_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_read_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_write_5m_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_write_1h_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END))) ON CONFLICT (sender, slot, conversation, provider, model, size) DO UPDATE SET calls = calls + excluded.calls, input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens, cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = pico_usd + excluded.pico_usd, priced = priced + excluded.priced, estimates = estimates + excluded.estimates, answers = answers + excluded.answers, answer_prompt = answer_prompt + excluded.answer_prompt, answer_input = answer_input + excluded.answer_input, answer_read = answer_read + excluded.answer_read, answer_5m = answer_5m + excluded.answer_5m, answer_1h = answer_1h + excluded.answer_1h, answer_known = answer_known + excluded.answer_known; END;

CREATE TRIGGER ledger_delete AFTER DELETE ON ledger BEGIN INSERT INTO spent_slot (slot, provider, model, size, bucket, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (cast(OLD.at / 900 AS INTEGER), OLD.provider, OLD.model, CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096) ELSE 0 END, OLD.conversation % 1, -(1), -(OLD.input_tokens), -(OLD.output_tokens), -(OLD.cache_read_tokens), -(OLD.cache_write_5m_tokens), -(OLD.cache_write_1h_tokens), -(coalesce(cast(round(OLD.usd * 1000000000000) AS INTEGER), 0)), -((OLD.usd IS NOT NULL)), -((OLD.estimated AND OLD.usd IS NOT NULL)), -((OLD.purpose = 'answer' AND NOT OLD.estimated)), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens)), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.input_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_read_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_write_5m_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_write_1h_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END))) ON CONFLICT (slot, provider, model, size, bucket) DO UPDATE SET calls = calls + excluded.calls, input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens, cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = pico_usd + excluded.pico_usd, priced = priced + excluded.priced, estimates = estimates + excluded.estimates, answers = answers + excluded.answers, answer_prompt = answer_prompt + excluded.answer_prompt, answer_input = answer_input + excluded.answer_input, answer_read = answer_read + excluded.answer_read, answer_5m = answer_5m + excluded.answer_5m, answer_1h = answer_1h + excluded.answer_1h, answer_known = answer_known + excluded.answer_known; DELETE FROM spent_slot WHERE slot = cast(OLD.at / 900 AS INTEGER) AND provider = OLD.provider AND model = OLD.model AND size = CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096) ELSE 0 END AND bucket = OLD.conversation % 1 AND calls = 0; INSERT INTO spent_by (sender, slot, conversation, provider, model, size, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (OLD.sender, cast(OLD.at / 900 AS INTEGER), OLD.conversation, OLD.provider, OLD.model, CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096) ELSE 0 END, -(1), -(OLD.input_tokens), -(OLD.output_tokens), -(OLD.cache_read_tokens), -(OLD.cache_write_5m_tokens), -(OLD.cache_write_1h_tokens), -(coalesce(cast(round(OLD.usd * 1000000000000) AS INTEGER), 0)), -((OLD.usd IS NOT NULL)), -((OLD.estimated AND OLD.usd IS NOT NULL)), -((OLD.purpose = 'answer' AND NOT OLD.estimated)), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens)), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.input_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_read_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_write_5m_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_write_1h_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END))) ON CONFLICT (sender, slot, conversation, provider, model, size) DO UPDATE SET calls = calls + excluded.calls, input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens, cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = pico_usd + excluded.pico_usd, priced = priced + excluded.priced, estimates = estimates + excluded.estimates, answers = answers + excluded.answers, answer_prompt = answer_prompt + excluded.answer_prompt, answer_input = answer_input + excluded.answer_input, answer_read = answer_read + excluded.answer_read, answer_5m = answer_5m + excluded.answer_5m, answer_1h = answer_1h + excluded.answer_1h, answer_known = answer_known + excluded.answer_known; DELETE FROM spent_by WHERE sender = OLD.sender AND slot = cast(OLD.at / 900 AS INTEGER) AND conversation = OLD.conversation AND provider = OLD.provider AND model = OLD.model AND size = CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096) ELSE 0 END AND calls = 0; END;

CREATE TRIGGER ledger_update AFTER UPDATE ON ledger BEGIN INSERT INTO spent_slot (slot, provider, model, size, bucket, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (cast(OLD.at / 900 AS INTEGER), OLD.provider, OLD.model, CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096) ELSE 0 END, OLD.conversation % 1, -(1), -(OLD.input_tokens), -(OLD.output_tokens), -(OLD.cache_read_tokens), -(OLD.cache_write_5m_tokens), -(OLD.cache_write_1h_tokens), -(coalesce(cast(round(OLD.usd * 1000000000000) AS INTEGER), 0)), -((OLD.usd IS NOT NULL)), -((OLD.estimated AND OLD.usd IS NOT NULL)), -((OLD.purpose = 'answer' AND NOT OLD.estimated)), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens)), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.input_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_read_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_write_5m_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_write_1h_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END))) ON CONFLICT (slot, provider, model, size, bucket) DO UPDATE SET calls = calls + excluded.calls, input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens, cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = pico_usd + excluded.pico_usd, priced = priced + excluded.priced, estimates = estimates + excluded.estimates, answers = answers + excluded.answers, answer_prompt = answer_prompt + excluded.answer_prompt, answer_input = answer_input + excluded.answer_input, answer_read = answer_read + excluded.answer_read, answer_5m = answer_5m + excluded.answer_5m, answer_1h = answer_1h + excluded.answer_1h, answer_known = answer_known + excluded.answer_known; DELETE FROM spent_slot WHERE slot = cast(OLD.at / 900 AS INTEGER) AND provider = OLD.provider AND model = OLD.model AND size = CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096) ELSE 0 END AND bucket = OLD.conversation % 1 AND calls = 0; INSERT INTO spent_by (sender, slot, conversation, provider, model, size, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (OLD.sender, cast(OLD.at / 900 AS INTEGER), OLD.conversation, OLD.provider, OLD.model, CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096) ELSE 0 END, -(1), -(OLD.input_tokens), -(OLD.output_tokens), -(OLD.cache_read_tokens), -(OLD.cache_write_5m_tokens), -(OLD.cache_write_1h_tokens), -(coalesce(cast(round(OLD.usd * 1000000000000) AS INTEGER), 0)), -((OLD.usd IS NOT NULL)), -((OLD.estimated AND OLD.usd IS NOT NULL)), -((OLD.purpose = 'answer' AND NOT OLD.estimated)), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens)), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.input_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_read_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_write_5m_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * OLD.cache_write_1h_tokens), -((OLD.purpose = 'answer' AND NOT OLD.estimated) * max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END))) ON CONFLICT (sender, slot, conversation, provider, model, size) DO UPDATE SET calls = calls + excluded.calls, input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens, cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = pico_usd + excluded.pico_usd, priced = priced + excluded.priced, estimates = estimates + excluded.estimates, answers = answers + excluded.answers, answer_prompt = answer_prompt + excluded.answer_prompt, answer_input = answer_input + excluded.answer_input, answer_read = answer_read + excluded.answer_read, answer_5m = answer_5m + excluded.answer_5m, answer_1h = answer_1h + excluded.answer_1h, answer_known = answer_known + excluded.answer_known; DELETE FROM spent_by WHERE sender = OLD.sender AND slot = cast(OLD.at / 900 AS INTEGER) AND conversation = OLD.conversation AND provider = OLD.provider AND model = OLD.model AND size = CASE WHEN (OLD.purpose = 'answer' AND NOT OLD.estimated) THEN 1 + 5 * (((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 512) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 1024) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 2048) + ((OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) >= 4096)) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 512) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 1024) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 2048) + (max(OLD.cache_read_tokens, CASE WHEN OLD.before_tokens <= (OLD.input_tokens + OLD.cache_read_tokens + OLD.cache_write_5m_tokens + OLD.cache_write_1h_tokens) THEN OLD.before_tokens ELSE 0 END) >= 4096) ELSE 0 END AND calls = 0; INSERT INTO spent_slot (slot, provider, model, size, bucket, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (cast(NEW.at / 900 AS INTEGER), NEW.provider, NEW.model, CASE WHEN (NEW.purpose = 'answer' AND NOT NEW.estimated) THEN 1 + 5 * (((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 512) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 1024) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 2048) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 4096)) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 512) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 1024) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 2048) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 4096) ELSE 0 END, NEW.conversation % 1, (1), (NEW.input_tokens), (NEW.output_tokens), (NEW.cache_read_tokens), (NEW.cache_write_5m_tokens), (NEW.cache_write_1h_tokens), (coalesce(cast(round(NEW.usd * 1000000000000) AS INTEGER), 0)), ((NEW.usd IS NOT NULL)), ((NEW.estimated AND NEW.usd IS NOT NULL)), ((NEW.purpose = 'answer' AND NOT NEW.estimated)), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens)), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.input_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_read_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_write_5m_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_write_1h_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END))) ON CONFLICT (slot, provider, model, size, bucket) DO UPDATE SET calls = calls + excluded.calls, input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens, cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = pico_usd + excluded.pico_usd, priced = priced + excluded.priced, estimates = estimates + excluded.estimates, answers = answers + excluded.answers, answer_prompt = answer_prompt + excluded.answer_prompt, answer_input = answer_input + excluded.answer_input, answer_read = answer_read + excluded.answer_read, answer_5m = answer_5m + excluded.answer_5m, answer_1h = answer_1h + excluded.answer_1h, answer_known = answer_known + excluded.answer_known; INSERT INTO spent_by (sender, slot, conversation, provider, model, size, calls, input_tokens, output_tokens, cache_read_tokens, cache_write_5m_tokens, cache_write_1h_tokens, pico_usd, priced, estimates, answers, answer_prompt, answer_input, answer_read, answer_5m, answer_1h, answer_known) VALUES (NEW.sender, cast(NEW.at / 900 AS INTEGER), NEW.conversation, NEW.provider, NEW.model, CASE WHEN (NEW.purpose = 'answer' AND NOT NEW.estimated) THEN 1 + 5 * (((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 512) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 1024) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 2048) + ((NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) >= 4096)) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 512) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 1024) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 2048) + (max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END) >= 4096) ELSE 0 END, (1), (NEW.input_tokens), (NEW.output_tokens), (NEW.cache_read_tokens), (NEW.cache_write_5m_tokens), (NEW.cache_write_1h_tokens), (coalesce(cast(round(NEW.usd * 1000000000000) AS INTEGER), 0)), ((NEW.usd IS NOT NULL)), ((NEW.estimated AND NEW.usd IS NOT NULL)), ((NEW.purpose = 'answer' AND NOT NEW.estimated)), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens)), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.input_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_read_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_write_5m_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * NEW.cache_write_1h_tokens), ((NEW.purpose = 'answer' AND NOT NEW.estimated) * max(NEW.cache_read_tokens, CASE WHEN NEW.before_tokens <= (NEW.input_tokens + NEW.cache_read_tokens + NEW.cache_write_5m_tokens + NEW.cache_write_1h_tokens) THEN NEW.before_tokens ELSE 0 END))) ON CONFLICT (sender, slot, conversation, provider, model, size) DO UPDATE SET calls = calls + excluded.calls, input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens, cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, cache_write_5m_tokens = cache_write_5m_tokens + excluded.cache_write_5m_tokens, cache_write_1h_tokens = cache_write_1h_tokens + excluded.cache_write_1h_tokens, pico_usd = pico_usd + excluded.pico_usd, priced = priced + excluded.priced, estimates = estimates + excluded.estimates, answers = answers + excluded.answers, answer_prompt = answer_prompt + excluded.answer_prompt, answer_input = answer_input + excluded.answer_input, answer_read = answer_read + excluded.answer_read, answer_5m = answer_5m + excluded.answer_5m, answer_1h = answer_1h + excluded.answer_1h, answer_known = answer_known + excluded.answer_known; END;

CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL CONSTRAINT alembic_version_pkc PRIMARY KEY);

INSERT INTO alembic_version VALUES ('0034');
