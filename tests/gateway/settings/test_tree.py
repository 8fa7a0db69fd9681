"""The settings tree: sources and their order, origins, provider variables, and what is refused."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr

from adapters.registry import AccountSettings
from agent.settings import Section
from gateway.errors import SettingsError
from gateway.settings.changes import changes, effective
from gateway.settings.editing import located
from gateway.settings.loading import Loaded, load_settings, secret_values
from gateway.settings.sources import MOST_BYTES
from gateway.settings.tree import INDEX, Keys, Settings, all_keys, dotted, mark_of
from gateway.storage.database import DatabaseServer, location_of

CONFIGURATION_PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
UNREACHABLE = "x" * 300
"""No file system has such a name, so that looking fails for root, too."""
BOT_TOKEN = "123456789:AAabcdefghijklmnopqrstuvwxyz0123456"


def load(
    home: Path, yaml: str | None = None, env: dict[str, str] | None = None, **options: Any
) -> Loaded:
    """Load settings of a PARLEY_HOME that holds `yaml`, with nothing else in the environment."""
    if yaml is not None:
        (home / "parley.yaml").write_text(yaml)
    environ = {"PARLEY_HOME": str(home), **(env or {})}
    return load_settings(environ=environ, **options)


def problems(
    home: Path, yaml: str | None = None, env: dict[str, str] | None = None, **options: Any
) -> list[str]:
    """Return the lines of the error that loading raises."""
    with pytest.raises(SettingsError) as caught:
        load(home, yaml, env, **options)
    return str(caught.value).splitlines()


FULL_EXAMPLE = """
model:
  provider: auto            # auto | anthropic | openai | openrouter | nous | offline (openrouter, nous, …: presets of openai); auto: a key or base_url that is there decides, else offline
  name: null                # null: the provider's default
  base_url: null            # anthropic: without /v1; openai: with /v1
  api_key: null             # or ANTHROPIC_API_KEY / OPENAI_API_KEY
  context_length: null      # tokens; null: asked from the provider, else the table
  max_output_tokens: 8192
  idle_timeout_s: 60        # without a byte from the stream
fallbacks: []               # more model blocks, tried in order
agent: {max_iterations: 90, instructions: null}
compression: {enabled: true, threshold: 0.50, target_ratio: 0.20, protect_last_n: 20}
auxiliary: {compression: {model: null, provider: auto, base_url: null}}        # provider as above, or main
context: {engine: compressor, rounds: {min_retain_rounds: 10, threshold: 0.8, summary: simple}}   # summary: simple | llm
prompt_caching: {cache_ttl: 5m, strategy: system_and_3}
budget: {daily_usd: null, sender_daily_usd: null}
queue: {mode: collect, debounce_ms: 400, max_pending: 100, max_concurrent_turns: 64, max_attempts: 3}
sessions: {reset: none, timezone: UTC, at_hour: 4, idle_minutes: 1440, groups: per_user}      # reset: none | daily | idle | both; groups: per_user | shared
access: {mode: pairing, owners: [], telegram: [], discord: [], slack: []}      # mode: pairing | allowlist | open
tools: {enabled: [todo, memory, session_search, delegate_task, clarify, read_conversation, current_time, calculate], approval: side_effects, output: {max_lines: 2000, max_bytes: 51200, direction: head}, mcp: {}}
platforms:
  telegram: {token: null, base_url: null, base_file_url: null, mode: polling, webhook_url: null, webhook_secret: null, preview: edit}   # base_url: the server's root; preview: edit | draft
  discord: {token: null, api_url: null, gateway_url: null}
  slack: {bot_token: null, app_token: null, signing_secret: null, base_url: null, mode: socket}                          # base_url ends in /api/
web: {enabled: true, host: 127.0.0.1, port: 8765, token: null}                 # a token is required on any other host
storage: {url: null, raw_days: 30}        # null: SQLite in PARLEY_HOME; or postgresql://…
logging: {level: info, format: auto, file: null}                                # auto: console on a terminal, else JSON lines; file null: PARLEY_HOME/logs/parley.jsonl, rotated; false: none
"""  # noqa: E501 - verbatim from the design's settings page


class TestTree:
    def test_without_any_source_everything_is_a_default(self, tmp_path: Path) -> None:
        """An empty home gives the offline model, the loopback web chat and no warning."""
        loaded = load(tmp_path)
        assert loaded.settings.home == tmp_path
        assert loaded.settings.model.provider == "offline"
        assert (loaded.settings.web.host, loaded.settings.web.port) == ("127.0.0.1", 8765)
        assert set(loaded.origins.values()) == {"default", "PARLEY_HOME"}
        assert (loaded.warnings, loaded.config_file) == ((), None)

    def test_the_full_example_of_the_design_loads_and_equals_the_defaults(
        self, tmp_path: Path
    ) -> None:
        """The documented example names the defaults, but for tools that are not built yet."""
        example = load(tmp_path, FULL_EXAMPLE)
        (tmp_path / "parley.yaml").unlink()
        default = load(tmp_path)
        differing = {key for key in example.values if example.values[key] != default.values[key]}
        assert differing == {"tools.enabled"}
        assert example.warnings == ()

    def test_the_tree_is_frozen(self, tmp_path: Path) -> None:
        """A setting cannot be changed after loading."""
        with pytest.raises(ValueError, match="frozen"):
            load(tmp_path).settings.queue.debounce_ms = 1

    def test_only_tools_that_exist_are_enabled_by_default(self, tmp_path: Path) -> None:
        """The default list names the tools of this version."""
        enabled = load(tmp_path).settings.tools.enabled
        assert enabled == (
            "todo",
            "memory",
            "session_search",
            "delegate_task",
            "clarify",
            "read_conversation",
            "current_time",
            "calculate",
            "send_file",
            "skill_view",
        )

    def test_the_configuration_page_lists_every_key_with_its_default(self) -> None:
        """docs/configuration.md and the tree have the same keys, defaults and order."""
        rows = re.findall(
            r"^\| `([a-z0-9_.]+)` \|.*?\| `([^`]*)` \|", CONFIGURATION_PAGE.read_text("utf-8"), re.M
        )
        assert rows == [(key, default) for key, default in documented_keys() if key != "home"]


LISTS_OF_BLOCKS = (
    ("fallbacks", INDEX),
    ("agent", "prefill", INDEX),
)


def documented_keys() -> list[tuple[str, str]]:
    """Return what the page must list: values and lists, without the inside of lists of blocks."""
    listed = []
    for key in Keys(Settings):
        in_list = any(key.pattern[: len(each)] == each for each in LISTS_OF_BLOCKS)
        if key.kind != "section" and not key.lone_block and not in_list:
            default = None if key.pattern == ("home",) else key.default
            text = orjson.dumps(default).decode().replace('"', "").replace(",", ", ")
            listed.append((dotted(tuple(step for step in key.pattern if step != INDEX)), text))
    return listed


class TestSources:
    def test_the_file_the_environment_and_options_override_each_other(self, tmp_path: Path) -> None:
        """Options win over the environment, which wins over the file, key by key."""
        yaml = "queue: {mode: followup, debounce_ms: 1, max_pending: 2}"
        env = {"PARLEY_QUEUE__DEBOUNCE_MS": "10", "PARLEY_QUEUE__MAX_PENDING": "20"}
        loaded = load(tmp_path, yaml, env, overrides={"queue.max_pending": 200})
        queue = loaded.settings.queue
        assert (queue.mode, queue.debounce_ms, queue.max_pending) == ("followup", 10, 200)
        assert loaded.origins["queue.mode"] == "parley.yaml"
        assert loaded.origins["queue.debounce_ms"] == "PARLEY_QUEUE__DEBOUNCE_MS"
        assert loaded.origins["queue.max_pending"] == "--max-pending"
        assert loaded.origins["queue.max_attempts"] == "default"

    def test_an_option_of_none_was_not_given(self, tmp_path: Path) -> None:
        """None leaves the lower layers alone."""
        loaded = load(tmp_path, "web: {port: 1}", overrides={"web.port": None})
        assert loaded.settings.web.port == 1

    def test_an_empty_variable_is_not_set(self, tmp_path: Path) -> None:
        """Compose files pass unset variables as empty strings."""
        assert load(tmp_path, env={"PARLEY_WEB__TOKEN": ""}).settings.web.token is None

    def test_lists_and_maps_come_as_json(self, tmp_path: Path) -> None:
        """A list replaces the one below it; a map is laid over it key by key."""
        env = {
            "PARLEY_ACCESS__TELEGRAM": "[1, 2]",
            "PARLEY_QUEUE": '{"mode": "interrupt"}',
            "PARLEY_FALLBACKS": '[{"provider": "offline", "name": "b"}]',
        }
        yaml = "access: {telegram: [7]}\nqueue: {debounce_ms: 5}\nfallbacks: [{name: a}, {name: c}]"
        settings = load(tmp_path, yaml, env).settings
        assert settings.access.telegram == ("1", "2")
        assert (settings.queue.mode, settings.queue.debounce_ms) == ("interrupt", 5)
        assert [block.name for block in settings.fallbacks] == ["b"]

    @pytest.mark.parametrize(("text", "expected"), [("true", True), ("0", False), ("off", False)])
    def test_scalars_are_coerced(self, tmp_path: Path, text: str, expected: bool) -> None:
        """The environment's text becomes the type of the key."""
        assert load(tmp_path, env={"PARLEY_WEB__ENABLED": text}).settings.web.enabled is expected

    @pytest.mark.parametrize(
        ("yaml", "expected"),
        [("null", None), ("false", False), ("'false'", False), ("a/b.log", Path("a/b.log"))],
    )
    def test_the_log_file_is_a_path_false_or_null(
        self, tmp_path: Path, yaml: str, expected: object
    ) -> None:
        """All three spellings of logging.file are taken."""
        assert load(tmp_path, f"logging: {{file: {yaml}}}").settings.logging.file == expected

    def test_a_secret_may_come_from_a_file(self, tmp_path: Path) -> None:
        """The content of KEY_FILE's file, stripped, is the secret."""
        (tmp_path / "token").write_text(f"{BOT_TOKEN}\n")
        loaded = load(tmp_path, env=file_variable(tmp_path / "token"))
        (account,) = loaded.settings.platforms.telegram
        assert account.token is not None
        assert account.token.get_secret_value() == BOT_TOKEN
        assert loaded.origins["platforms.telegram.token"] == TOKEN_FILE

    def test_an_unreadable_secret_file_is_an_error(self, tmp_path: Path) -> None:
        """The line names variable, path and reason."""
        (line,) = problems(tmp_path, env=file_variable(tmp_path / "no"))
        told = f"file:{tmp_path}/no cannot be read: No such file or directory"
        assert line == f"platforms.telegram.token: {told} ({TOKEN_FILE})"

    def test_a_binary_secret_file_is_an_error(self, tmp_path: Path) -> None:
        """A file that is not text cannot be a secret."""
        (tmp_path / "token").write_bytes(b"\xff\xfe")
        (line,) = problems(tmp_path, env=file_variable(tmp_path / "token"))
        assert line.endswith(f"is not UTF-8 text ({TOKEN_FILE})")

    def test_a_secret_and_its_file_exclude_each_other(self, tmp_path: Path) -> None:
        """Both variables at once are an error, not a guess."""
        env = file_variable(tmp_path) | {TOKEN_FILE.removesuffix("_FILE"): BOT_TOKEN}
        (line,) = problems(tmp_path, env=env)
        assert line.endswith("PARLEY_PLATFORMS__TELEGRAM__TOKEN is set too; keep one of them")

    def test_only_secrets_come_from_files(self, tmp_path: Path) -> None:
        """KEY_FILE of a plain key is an unknown variable."""
        (line,) = problems(tmp_path, env={"PARLEY_WEB__HOST_FILE": "/x"})
        assert line.startswith("PARLEY_WEB__HOST_FILE: unknown variable")

    def test_variables_of_home_config_and_tests_are_no_settings(self, tmp_path: Path) -> None:
        """They are read elsewhere and not complained about."""
        file = tmp_path / "other.yaml"
        file.write_text("web: {port: 7}")
        loaded = load(tmp_path, env={"PARLEY_CONFIG": str(file), "PARLEY_TEST_DEEP": "1"})
        assert loaded.settings.web.port == 7
        assert loaded.origins["web.port"] == str(file)

    def test_a_named_file_wins_over_the_one_in_the_home(self, tmp_path: Path) -> None:
        """--config FILE replaces parley.yaml; its path is the origin."""
        file = tmp_path / "other.yaml"
        file.write_text("web: {port: 7}")
        loaded = load(tmp_path, "web: {port: 8}", config=file)
        assert (loaded.settings.web.port, loaded.origins["web.port"]) == (7, str(file))
        assert loaded.config_file == file

    def test_the_home_option_wins_over_the_variable(self, tmp_path: Path) -> None:
        """--home also decides where parley.yaml is looked for."""
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "parley.yaml").write_text("web: {port: 9}")
        loaded = load(tmp_path, overrides={"home": tmp_path / "b"})
        assert (loaded.settings.home, loaded.settings.web.port) == (tmp_path / "b", 9)
        assert loaded.origins["home"] == "--home"

    def test_the_default_home_is_the_users_data_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without PARLEY_HOME the platform decides; the process environment is the default."""
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        monkeypatch.delenv("PARLEY_HOME", raising=False)
        assert load_settings().settings.home == tmp_path / "parley"

    @pytest.mark.parametrize("yaml", ["", "# nothing\n", "queue:\n", "platforms: {telegram: }\n"])
    def test_empty_files_and_sections_are_fine(self, tmp_path: Path, yaml: str) -> None:
        """What is commented out counts as absent."""
        assert load(tmp_path, yaml).settings == load(tmp_path, "").settings


TOKEN_FILE = "PARLEY_PLATFORMS__TELEGRAM__TOKEN_FILE"


def file_variable(path: Path) -> dict[str, str]:
    """Return an environment whose bot token lies in a file."""
    return {TOKEN_FILE: str(path)}


class TestAccounts:
    def test_one_block_is_a_list_of_one(self, tmp_path: Path) -> None:
        """The single account is named without a position."""
        loaded = load(tmp_path, f"platforms: {{telegram: {{token: '{BOT_TOKEN}'}}}}")
        assert [account.name for account in loaded.settings.platforms.telegram] == ["default"]
        assert loaded.origins["platforms.telegram.token"] == "parley.yaml"
        assert loaded.origins["platforms.telegram.mode"] == "default"

    def test_several_blocks_are_named_by_position(self, tmp_path: Path) -> None:
        """Each account has its own keys, and variables reach them by number."""
        yaml = "platforms: {telegram: [{}, {name: b, mode: polling}]}"
        env = {"PARLEY_PLATFORMS__TELEGRAM__1__TOKEN": BOT_TOKEN}
        loaded = load(tmp_path, yaml, env)
        first, second = loaded.settings.platforms.telegram
        assert (first.token, second.name) == (None, "b")
        assert loaded.origins["platforms.telegram.1.token"] == env.popitem()[0]
        assert loaded.origins["platforms.telegram.0.mode"] == "default"

    def test_a_variable_creates_the_first_block(self, tmp_path: Path) -> None:
        """A token in the environment is enough to switch Telegram on."""
        env = {"PARLEY_PLATFORMS__TELEGRAM__TOKEN": BOT_TOKEN}
        (account,) = load(tmp_path, env=env).settings.platforms.telegram
        assert account.token == SecretStr(BOT_TOKEN)

    def test_a_variable_must_say_which_of_several_blocks_it_means(self, tmp_path: Path) -> None:
        """The line shows the spelling with a position."""
        env = {"PARLEY_PLATFORMS__TELEGRAM__TOKEN": BOT_TOKEN}
        (line,) = problems(tmp_path, "platforms: {telegram: [{}, {name: b}]}", env)
        assert line.endswith("2 blocks; name one, as in PARLEY_PLATFORMS__TELEGRAM__0__TOKEN")

    def test_positions_have_no_gaps(self, tmp_path: Path) -> None:
        """A block after the next one is an error."""
        (line,) = problems(tmp_path, env={"PARLEY_FALLBACKS__1__NAME": "x"})
        assert line.startswith("fallbacks: has 0 blocks, so there is no number 1")
        assert line.endswith("given by PARLEY_FALLBACKS__1__NAME")

    def test_names_are_distinct(self, tmp_path: Path) -> None:
        """Two accounts of one name would share their conversations."""
        (line,) = problems(tmp_path, "platforms: {telegram: [{name: a}, {name: a}]}")
        assert line.startswith("platforms.telegram: 2 blocks have the name 'a'")

    def test_a_name_holds_no_colon(self, tmp_path: Path) -> None:
        """It is a part of the session key."""
        (line,) = problems(tmp_path, "platforms: {telegram: {name: 'a:b'}}")
        assert "the name 'a:b' is not allowed" in line

    def test_ids_may_be_numbers(self, tmp_path: Path) -> None:
        """People write Telegram ids without quotes."""
        assert load(tmp_path, "access: {slack: [42]}").settings.access.slack == ("42",)


class TestProviders:
    @pytest.mark.parametrize(
        ("variables", "provider", "key"),
        [
            ({"ANTHROPIC_API_KEY": "ant-1", "OPENAI_API_KEY": "open-1"}, "anthropic", "ant-1"),
            ({"OPENAI_API_KEY": " open-1\n", "NOUS_API_KEY": "nous-1"}, "openai", "open-1"),
            ({"OPENROUTER_API_KEY": "or-1", "NOUS_API_KEY": "nous-1"}, "openrouter", "or-1"),
            ({"NOUS_API_KEY": "nous-1", "OPENAI_API_KEY": " "}, "nous", "nous-1"),
        ],
    )
    def test_a_variable_decides_provider_auto(
        self, tmp_path: Path, variables: dict[str, str], provider: str, key: str
    ) -> None:
        """The first variable that is set, Anthropic's first, gives provider and key."""
        loaded = load(tmp_path, env=variables)
        model = loaded.settings.model
        assert model.provider == provider
        assert model.api_key is not None
        assert model.api_key.get_secret_value() == key
        assert loaded.origins["model.provider"] == loaded.origins["model.api_key"]
        assert loaded.origins["model.api_key"] == f"{provider.upper()}_API_KEY"

    def test_a_chosen_provider_takes_only_its_own_variable(self, tmp_path: Path) -> None:
        """OPENAI_API_KEY does not go to Anthropic."""
        model = load(
            tmp_path, "model: {provider: anthropic}", {"OPENAI_API_KEY": "x"}
        ).settings.model
        assert (model.provider, model.api_key) == ("anthropic", None)

    def test_the_offline_model_takes_no_key(self, tmp_path: Path) -> None:
        """An explicit `offline` stays offline whatever the environment holds."""
        env = {"ANTHROPIC_API_KEY": "sk-1"}
        model = load(tmp_path, "model: {provider: offline}", env).settings.model
        assert (model.provider, model.api_key) == ("offline", None)

    def test_a_base_url_means_openai(self, tmp_path: Path) -> None:
        """A server of one's own speaks OpenAI's protocol, also with Anthropic's variable set."""
        yaml = "model: {base_url: 'http://127.0.0.1:1/v1'}"
        loaded = load(tmp_path, yaml, {"ANTHROPIC_API_KEY": "sk-1"})
        assert (loaded.settings.model.provider, loaded.settings.model.api_key) == ("openai", None)
        assert loaded.origins["model.provider"] == "model.base_url"

    @pytest.mark.parametrize(
        ("key", "provider"),
        [("sk-ant-1", "anthropic"), ("sk-or-1", "openrouter"), ("sk-proj-1", "openai")],
    )
    def test_a_configured_key_decides_by_its_shape(
        self, tmp_path: Path, key: str, provider: str
    ) -> None:
        """Keys tell whose they are; the variables are ignored."""
        env = {"PARLEY_MODEL__API_KEY": key, "NOUS_API_KEY": "nous-1"}
        model = load(tmp_path, env=env).settings.model
        assert model.provider == provider
        assert model.api_key is not None
        assert model.api_key.get_secret_value() == key

    def test_several_keys_count_as_configured(self, tmp_path: Path) -> None:
        """`api_keys` alone is enough; its first key decides on the provider."""
        env = {"NOUS_API_KEY": "nous-1"}
        loaded = load(tmp_path, "model: {api_keys: [sk-ant-1, sk-ant-2]}", env)
        model = loaded.settings.model
        assert (model.provider, model.api_key) == ("anthropic", model.api_keys[0])
        assert loaded.warnings == ()

    def test_a_fallback_gets_the_key_of_its_provider(self, tmp_path: Path) -> None:
        """Each block looks at the variable of its own provider."""
        env = {"ANTHROPIC_API_KEY": "ant-1", "OPENAI_API_KEY": "open-1"}
        loaded = load(tmp_path, "fallbacks: [{provider: openai}]", env)
        (fallback,) = loaded.settings.fallbacks
        assert fallback.api_key is not None
        assert fallback.api_key.get_secret_value() == "open-1"
        assert loaded.origins["fallbacks.0.api_key"] == "OPENAI_API_KEY"

    def test_every_secret_is_listed_for_redaction(self, tmp_path: Path) -> None:
        """Keys, lists of keys and tokens, also those from provider variables."""
        yaml = "model: {api_keys: [key-1, key-2]}\nweb: {token: web-token-of-the-chat}\n"
        yaml += "fallbacks: [{provider: nous}]"
        settings = load(tmp_path, yaml, {"NOUS_API_KEY": "nous-1"}).settings
        assert secret_values(settings) == (
            "key-1",
            "key-1",
            "key-2",
            "nous-1",
            "web-token-of-the-chat",
        )


class TestMcpServers:
    YAML = """
tools:
  mcp:
    files: {command: npx, args: [-y, 8080], env: {TOKEN: program-token, DEBUG: "true"}}
    web: {url: "https://mcp.example.org/", headers: {Authorization: Bearer web-token}}
"""

    def test_their_secrets_are_listed_for_redaction(self, tmp_path: Path) -> None:
        """Words such as `true` are not: they would be masked wherever they stand."""
        settings = load(tmp_path, self.YAML).settings
        assert settings.tools.mcp["files"].args == ("-y", "8080")
        assert secret_values(settings) == ("program-token", "Bearer web-token")

    @pytest.mark.parametrize(
        ("block", "words"),
        [
            ("{s: {}}", "must have either command or url"),
            ("{s: {command: x, url: 'http://x/'}}", "must have either command or url"),
            (
                "{s: {url: 'ftp://x/'}}",
                "tools.mcp.s.url: 'ftp://x/' in parley.yaml is not allowed; must begin with http",
            ),
            (
                "{'a b': {command: x}}",
                "tools.mcp.a b: 'a b' in parley.yaml is not allowed; must be a",
            ),
            (
                "{s: {command: x, comand: y}}",
                "unknown key in parley.yaml; did you mean tools.mcp.s.command?",
            ),
            ("{s: {command: x, zzz: y}}", "known here: enabled, command, args"),
            ("{s: {command: x, args: 'a b'}}", "tools.mcp.s.args: 'a b' in parley.yaml"),
            ("{s: {command: x, env: hunter22}}", "tools.mcp.s.env: ********"),
            ("{s: hunter22}", "tools.mcp.s: ********"),
            ("{s: {url: 'http://x/', headers: {A: [hunter22]}}}", "tools.mcp.s.headers.A"),
        ],
    )
    def test_a_wrong_block_is_told_without_its_secrets(
        self, tmp_path: Path, block: str, words: str
    ) -> None:
        """One line names the place."""
        [line] = problems(tmp_path, f"tools: {{mcp: {block}}}")
        assert words in line
        assert "hunter22" not in line


class TestWhatCannotMatch:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (
                "tools: {fetch: {allow_hosts: ['http://wiki.local/']}}",
                "tools.fetch.allow_hosts: 'http://wiki.local/' must be a host",
            ),
            (
                "tools: {terminal: {readable: [opt/tools]}}",
                "tools.terminal.readable: 'opt/tools' must be an absolute path",
            ),
            (
                "agent: {prefill: [{role: user, content: hi}]}",
                "then one of the assistant (parley.yaml)",
            ),
        ],
    )
    def test_it_is_refused_with_its_source(self, tmp_path: Path, text: str, words: str) -> None:
        """One line names place, value and file."""
        [line] = problems(tmp_path, text)
        assert words in line
        assert line.endswith("(parley.yaml)")

    def test_a_workspace_that_is_not_there_is_a_warning(self, tmp_path: Path) -> None:
        """It may be mounted later; until then nothing is read. So is one that cannot be entered."""
        for place, reason in (
            ("/no/such/place", "No such file or directory"),
            (f"/{UNREACHABLE}", "File name too long"),
        ):
            [warning] = load(tmp_path, f"agent: {{workspace: {place}}}").warnings
            assert warning == f"agent.workspace: {place} cannot be read: {reason}"
        assert load(tmp_path, f"agent: {{workspace: '{tmp_path}'}}").warnings == ()


class TestOldSpellings:
    YAML = "compression: {summary_model: small}\nmodel: {cache_ttl: 1h}"

    def test_they_are_taken_with_a_warning(self, tmp_path: Path) -> None:
        """Both old keys reach their new places."""
        loaded = load(tmp_path, self.YAML)
        assert loaded.settings.auxiliary.compression.model == "small"
        assert loaded.settings.prompt_caching.cache_ttl == "1h"
        assert loaded.warnings[:2] == (
            (
                "compression.summary_model in parley.yaml is an old spelling; "
                "write auxiliary.compression.model"
            ),
            "model.cache_ttl in parley.yaml is an old spelling; write prompt_caching.cache_ttl",
        )

    def test_a_variable_may_use_them_too(self, tmp_path: Path) -> None:
        """PARLEY_MODEL__CACHE_TTL still works."""
        loaded = load(tmp_path, env={"PARLEY_MODEL__CACHE_TTL": "1h"})
        assert loaded.settings.prompt_caching.cache_ttl == "1h"
        assert loaded.warnings[0].startswith("model.cache_ttl in PARLEY_MODEL__CACHE_TTL")

    def test_the_new_spelling_wins_in_the_same_file(self, tmp_path: Path) -> None:
        """Whatever their order in the file."""
        yaml = "prompt_caching: {cache_ttl: 5m}\nmodel: {cache_ttl: 1h}"
        assert load(tmp_path, yaml).settings.prompt_caching.cache_ttl == "5m"


class TestAuxiliaryModel:
    def test_it_is_the_one_that_answers_unless_it_is_set(self, tmp_path: Path) -> None:
        """Its window alone makes no other model of it."""
        for yaml in ("{context_length: 9000}", "{provider: main}"):
            loaded = load(tmp_path, f"auxiliary: {{compression: {yaml}}}")
            assert not loaded.settings.auxiliary.compression.is_set
            assert loaded.warnings == ()

    @pytest.mark.parametrize(
        "block", ["model: small", "provider: nous", "base_url: 'http://127.0.0.1:1/v1'"]
    )
    def test_a_model_a_provider_or_a_server_sets_it(self, tmp_path: Path, block: str) -> None:
        """Each alone is another model."""
        loaded = load(tmp_path, f"auxiliary: {{compression: {{{block}}}}}")
        assert loaded.settings.auxiliary.compression.is_set

    def test_a_provider_of_its_own_takes_its_key_from_its_variable(self, tmp_path: Path) -> None:
        """Beside that of the model that answers, and with its origin."""
        env = {"ANTHROPIC_API_KEY": "sk-ant-1", "OPENROUTER_API_KEY": "sk-or-2"}
        loaded = load(tmp_path, "auxiliary: {compression: {provider: openrouter}}", env)
        assert secret_values(loaded.settings) == ("sk-ant-1", "sk-or-2")
        assert loaded.origins["auxiliary.compression.api_key"] == "OPENROUTER_API_KEY"

    def test_a_server_or_key_decides_about_the_provider(self, tmp_path: Path) -> None:
        """As it does for the model that answers."""
        server = load(tmp_path, "auxiliary: {compression: {base_url: 'http://127.0.0.1:1/v1'}}")
        assert server.settings.auxiliary.compression.provider == "openai"
        key = load(tmp_path, "auxiliary: {compression: {api_key: sk-ant-3}}")
        assert key.settings.auxiliary.compression.provider == "anthropic"

    def test_the_provider_of_the_main_model_gets_no_key_of_its_own(self, tmp_path: Path) -> None:
        """It uses that of `model`."""
        yaml = "auxiliary: {compression: {model: small}}"
        loaded = load(tmp_path, yaml, {"ANTHROPIC_API_KEY": "sk-ant-1"})
        assert loaded.settings.auxiliary.compression.api_key is None
        assert loaded.settings.auxiliary.compression.provider == "auto"

    @pytest.mark.parametrize("own", ["base_url: 'http://127.0.0.1:1/v1'", "api_key: sk-ant-1"])
    def test_provider_main_has_no_server_or_key_of_its_own(self, tmp_path: Path, own: str) -> None:
        """Which provider's it is would be anyone's guess."""
        (line,) = problems(tmp_path, f"auxiliary: {{compression: {{provider: main, {own}}}}}")
        assert line.startswith("auxiliary.compression.provider: must be the provider of")


@pytest.mark.parametrize(
    "yaml",
    [
        "compression: {threshold: 0.4, target_ratio: 0.3, protect_last_n: 5, enabled: false}",
        "context: {engine: rounds, rounds: {min_retain_rounds: 3}}",
        "sessions: {reset: both, timezone: Asia/Tokyo, at_hour: 0, idle_minutes: 1}",
        "model: {provider: nous, name: x, api_keys: [abcd1234, efgh5678], extra_body: {seed: 1}}",
        "agent: {max_turn_tokens: 1000, max_turn_s: 60}",
        "prompt_caching: {cache_ttl: 1h, strategy: anchored}",
        "budget: {daily_usd: 5, sender_daily_usd: 1}",
    ],
)
def test_settings_that_were_changed_have_an_effect(tmp_path: Path, yaml: str) -> None:
    """There is no warning about them."""
    assert load(tmp_path, yaml).warnings == ()


@pytest.mark.parametrize("key", ["max_output_tokens", "retry_for_s"])
def test_a_fallback_has_no_such_limit_of_its_own(tmp_path: Path, key: str) -> None:
    """That of the main model holds for all; whoever sets another one is told."""
    fallback = f"fallbacks: [{{provider: offline}}, {{provider: offline, {key}: 77}}]\n"
    assert load(tmp_path, f"model: {{{key}: 99}}\n{fallback}").warnings == (
        f"fallbacks.1.{key} is set, but has no effect: that of `model` holds for all",
    )


def test_what_a_fallback_has_of_its_own_gives_no_warning(tmp_path: Path) -> None:
    """Its window, its timeout, its prices; and a limit that is the default."""
    own = "context_length: 9000, idle_timeout_s: 5, facts: {input_usd: 1}, max_output_tokens: 8192"
    assert load(tmp_path, f"fallbacks: [{{provider: offline, {own}}}]").warnings == ()


class TestRefusals:
    def test_an_unknown_key_gets_a_suggestion(self, tmp_path: Path) -> None:
        """The nearest key is named with its whole path."""
        (line,) = problems(tmp_path, "queue: {debounce: 3}")
        assert line == (
            "queue.debounce: unknown key in parley.yaml; did you mean queue.debounce_ms?"
        )

    def test_an_unknown_key_without_a_likeness_lists_its_neighbours(self, tmp_path: Path) -> None:
        """What is allowed stands in the line."""
        (line,) = problems(tmp_path, "storage: {xyzzy: 3}")
        unknown = "storage.xyzzy: unknown key in parley.yaml; known here: url, direct_url, "
        assert line.startswith(unknown)

    def test_a_key_in_the_wrong_section_is_led_to_the_right_one(self, tmp_path: Path) -> None:
        """The same name elsewhere is the suggestion."""
        (line,) = problems(tmp_path, "debounce_ms: 3")
        assert line == "debounce_ms: unknown key in parley.yaml; did you mean queue.debounce_ms?"

    def test_an_unknown_key_in_a_block_of_a_list_has_its_position(self, tmp_path: Path) -> None:
        """The second account's mistake is told apart from the first one's."""
        (line,) = problems(tmp_path, "platforms: {telegram: [{}, {name: b, wxyz: secret}]}")
        assert line.startswith("platforms.telegram.1.wxyz: unknown key in parley.yaml; known here:")
        assert "name, reactions, allow_bots, token" in line
        assert "secret'" not in line

    def test_an_unknown_variable_gets_a_suggestion(self, tmp_path: Path) -> None:
        """Spelled as a variable."""
        (line,) = problems(tmp_path, env={"PARLEY_QUEUE_MODE": "collect"})
        assert line == "PARLEY_QUEUE_MODE: unknown variable; did you mean PARLEY_QUEUE__MODE?"

    def test_an_unknown_variable_without_a_likeness_gets_none(self, tmp_path: Path) -> None:
        """What all variables begin with makes no two of them alike."""
        (line,) = problems(tmp_path, env={"PARLEY_NONSENSE__X": "1"})
        assert line == "PARLEY_NONSENSE__X: unknown variable"

    def test_a_home_that_nobody_can_look_into_is_refused(self, tmp_path: Path) -> None:
        """In one line with the reason, as an unreadable parley.yaml."""
        (line,) = problems(tmp_path / UNREACHABLE)
        assert line == f"{tmp_path / UNREACHABLE}/parley.yaml: cannot be read: File name too long"

    @pytest.mark.parametrize("variable", ["PARLEY_HOME", "PARLEY_CONFIG"])
    def test_a_user_that_there_is_not_is_told(self, variable: str) -> None:
        """In one line that names the variable, not with a traceback."""
        with pytest.raises(SettingsError, match=rf"^{variable}: '~nosuchuser/x' names a user"):
            load_settings(environ={variable: "~nosuchuser/x"})

    def test_home_is_no_key_of_the_file(self, tmp_path: Path) -> None:
        """The file lies in it."""
        (line,) = problems(tmp_path, "home: /x")
        assert line == "home: not a key of parley.yaml; set PARLEY_HOME or --home"

    @pytest.mark.parametrize(
        ("yaml", "line"),
        [
            (
                "queue: {mode: colect}",
                (
                    "queue.mode: 'colect' in parley.yaml is not allowed; "
                    "must be 'collect', 'followup' or 'interrupt'"
                ),
            ),
            (
                "web: {port: 99999}",
                (
                    "web.port: 99999 in parley.yaml is not allowed; "
                    "must be less than or equal to 65535"
                ),
            ),
            (
                "retention: {transcript_days: -1}",
                (
                    "retention.transcript_days: -1 in parley.yaml is not allowed; "
                    "must be greater than or equal to 1"
                ),
            ),
            (
                f"storage: {{raw_days: {10**20}}}",
                (
                    f"storage.raw_days: {10**20} in parley.yaml is not allowed; "
                    "must be less than or equal to 100000"
                ),
            ),
            (
                "logging: {file: 5}",
                "logging.file: 5 in parley.yaml is not allowed; must be a path, false or null",
            ),
            (
                "budget: {daily_usd: abc}",
                "budget.daily_usd: 'abc' in parley.yaml is not allowed; must be a number",
            ),
            (
                "queue: 5",
                "queue: ******** in parley.yaml is not allowed; must be a section with keys",
            ),
            (
                "fallbacks: {name: x}",
                "fallbacks: ******** in parley.yaml is not allowed; must be a list",
            ),
            (
                "fallbacks: [x]",
                "fallbacks.0: ******** in parley.yaml is not allowed; must be a section with keys",
            ),
            (
                "tools: {mcp: [x]}",
                "tools.mcp: ******** in parley.yaml is not allowed; must be a map",
            ),
            (
                "model: {name: 5}",
                (
                    "model.name: 5 in parley.yaml is not allowed; "
                    "must be text (in quotes, if it looks like a number)"
                ),
            ),
            (
                "access: {telegram: ['@ada']}",
                (
                    "access.telegram: '@ada' is not a numeric id; "
                    "the bot tells it to whoever writes to it (parley.yaml)"
                ),
            ),
            (
                "sessions: {at_hour: 24}",
                (
                    "sessions.at_hour: 24 in parley.yaml is not allowed; "
                    "must be less than or equal to 23"
                ),
            ),
            (
                "sessions: {idle_minutes: 0}",
                (
                    "sessions.idle_minutes: 0 in parley.yaml is not allowed; "
                    "must be greater than or equal to 1"
                ),
            ),
            (
                "auxiliary: {compression: {context_length: 0}}",
                (
                    "auxiliary.compression.context_length: 0 in parley.yaml is not allowed; "
                    "must be greater than or equal to 1024"
                ),
            ),
            (
                "sessions: {timezone: Mars/Olympus}",
                (
                    "sessions.timezone: 'Mars/Olympus' in parley.yaml is not allowed; "
                    "must be an IANA time zone, such as Europe/Berlin"
                ),
            ),
        ],
    )
    def test_a_bad_value_is_named_with_what_is_allowed(
        self, tmp_path: Path, yaml: str, line: str
    ) -> None:
        """File, key, value and the allowed values stand in one line."""
        assert problems(tmp_path, yaml) == [line]

    def test_a_real_time_zone_is_taken(self, tmp_path: Path) -> None:
        """Names of the IANA database are allowed."""
        assert load(tmp_path, "sessions: {timezone: Europe/Berlin}").settings.sessions.timezone

    def test_a_bad_variable_is_named(self, tmp_path: Path) -> None:
        """The line says which variable to fix."""
        (line,) = problems(tmp_path, env={"PARLEY_WEB__PORT": "many"})
        assert line.startswith("web.port: 'many' in PARLEY_WEB__PORT is not allowed; must be")

    def test_a_list_that_is_no_json_is_shown_how(self, tmp_path: Path) -> None:
        """The example can be copied."""
        (line,) = problems(tmp_path, env={"PARLEY_ACCESS__OWNERS": "1,2"})
        assert line.endswith(
            'PARLEY_ACCESS__OWNERS is not allowed; must be JSON, such as ["a", "b"]'
        )

    def test_a_section_that_is_no_json_is_not_shown(self, tmp_path: Path) -> None:
        """It may hold a secret."""
        (line,) = problems(tmp_path, env={"PARLEY_MODEL": "{api_key: hunter22}"})
        assert line.startswith("model: ******** in PARLEY_MODEL is not allowed; must be JSON")

    def test_long_values_are_cut(self, tmp_path: Path) -> None:
        """A line stays readable."""
        (line,) = problems(tmp_path, f"queue: {{mode: {'x' * 500}}}")
        assert len(line) < 200

    @pytest.mark.parametrize(
        "yaml",
        [
            "web: {token: [hunter22]}",
            "model: {api_keys: [1, [hunter22]]}",
            "platforms: {telegram: hunter22}",
            "platforms: hunter22",
            "model: {api_key: {a: hunter22}}",
            "platforms: {telegram: {tokne: hunter22}}",
            "web: {token: hunter22\nhost: }}",
        ],
    )
    def test_no_error_shows_a_secret(self, tmp_path: Path, yaml: str) -> None:
        """Neither the line nor its cause holds what stood at a secret's place."""
        with pytest.raises(SettingsError) as caught:
            load(tmp_path, yaml)
        assert "hunter22" not in str(caught.value)
        assert "hunter22" not in str(caught.value.__cause__)

    def test_a_section_that_is_none_stays_an_error_below_a_variable(self, tmp_path: Path) -> None:
        """A higher layer does not hide what is wrong in the file."""
        (line,) = problems(tmp_path, "queue: 5", {"PARLEY_QUEUE__MODE": "collect"})
        assert line.startswith("queue: ******** in parley.yaml is not allowed")

    def test_all_problems_are_told_at_once(self, tmp_path: Path) -> None:
        """One line each: environment and file together."""
        lines = problems(tmp_path, "queue: {mode: x, y: 1}", {"PARLEY_NOPE": "1"})
        assert sorted(line.partition(":")[0] for line in lines) == [
            "PARLEY_NOPE",
            "queue.mode",
            "queue.y",
        ]

    @pytest.mark.parametrize("key", ["queue.nope", "nope"])
    def test_an_unknown_option_is_an_error(self, tmp_path: Path, key: str) -> None:
        """Also from the command line."""
        (line,) = problems(tmp_path, overrides={key: 1})
        assert line.startswith(f"{key}: unknown key in --nope")


class TestFiles:
    def test_malformed_yaml_names_line_and_column(self, tmp_path: Path) -> None:
        """Without quoting the line, which may hold a secret."""
        (line,) = problems(tmp_path, "web:\n  port: 1\n token: hunter22\n")
        assert line.startswith("parley.yaml, line 3, column 2: not valid YAML: ")

    def test_a_key_twice_is_an_error(self, tmp_path: Path) -> None:
        """YAML itself would let the last one win in silence."""
        (line,) = problems(tmp_path, "web:\n  port: 1\n  host: a\n  port: 2\n")
        assert line == (
            "parley.yaml, line 4, column 3: not valid YAML: the key 'port' is there twice"
        )

    @pytest.mark.parametrize("text", ["model: &a {name: *a}\n", "extra: &a [*a]\n"])
    def test_what_contains_itself_is_an_error(self, tmp_path: Path, text: str) -> None:
        """It has no end; where its lines are looked for neither fails."""
        (line,) = problems(tmp_path, text)
        assert line.startswith("parley.yaml, line 1, column 8: not valid YAML: ")
        assert located(SettingsError(line), tmp_path / "parley.yaml") == [line]

    def test_the_order_of_accounts_is_no_change(self, tmp_path: Path) -> None:
        """What is new in one of them is found by its name."""
        first, second = ({"name": name, "token": f"{BOT_TOKEN}{name}"} for name in ("a", "b"))
        accounts = [[first, second], [second, first], [{**second, "preview": "draft"}, first]]
        one, turned, new = (
            load(tmp_path, orjson.dumps({"platforms": {"telegram": each}}).decode()).settings
            for each in accounts
        )
        assert changes(one, turned) == []
        assert effective(one, turned) == one
        [change] = changes(one, new)
        assert (change.key, change.mark) == ("platforms.telegram.1.preview", "live")

    def test_an_account_that_comes_holds_no_other_up(self, tmp_path: Path) -> None:
        """It waits for the restart; what is new in the one that runs does not."""
        first, second = ({"name": name, "token": f"{BOT_TOKEN}{name}"} for name in ("a", "b"))
        accounts = [[first], [second, {**first, "preview": "draft"}]]
        one, two = (
            load(tmp_path, orjson.dumps({"platforms": {"telegram": each}}).decode()).settings
            for each in accounts
        )
        assert [(each.key, each.mark) for each in changes(one, two)] == [
            ("platforms.telegram", "restart"),
            ("platforms.telegram.preview", "live"),
        ]
        [account] = effective(one, two).platforms.accounts("telegram")
        assert account == two.platforms.accounts("telegram")[1]

    def test_what_is_far_too_large_is_not_read(self, tmp_path: Path) -> None:
        """It would take minutes."""
        (line,) = problems(tmp_path, "#" * (MOST_BYTES + 1))
        assert line == "parley.yaml: has more than 500,000 bytes: no settings file"

    def test_merged_maps_are_no_duplicates(self, tmp_path: Path) -> None:
        """An anchor merged with << may be overridden."""
        yaml = "fallbacks:\n- &a {provider: nous, name: x}\n- {<<: *a, name: y}\n"
        settings = load(tmp_path, yaml).settings
        assert [(block.provider, block.name) for block in settings.fallbacks] == [
            ("nous", "x"),
            ("nous", "y"),
        ]

    @pytest.mark.parametrize("text", ["- a\n", "just text", "2020-99-99: x", "a: \x01"])
    def test_what_is_no_map_of_sections_is_an_error(self, tmp_path: Path, text: str) -> None:
        """Whatever else YAML can be."""
        assert problems(tmp_path, text)[0].startswith("parley.yaml")

    def test_a_file_that_is_not_utf8_is_an_error(self, tmp_path: Path) -> None:
        """Told as such, with the line, and without the words of a codec."""
        (tmp_path / "parley.yaml").write_bytes(b"web:\n  port: 1\n# \xff\xfe")
        assert problems(tmp_path) == ["parley.yaml, line 3: is not written in UTF-8"]

    @pytest.mark.parametrize(("each", "whole"), [("*v{1}", "[{}]"), ("k{0}: *v{1}", "{{{}}}")])
    def test_a_few_aliases_do_not_make_a_file_huge(
        self, tmp_path: Path, each: str, whole: str
    ) -> None:
        """Ten lines of ten aliases each are ten thousand million values."""
        lines = ["v0: &v0 [a]"]
        for number in range(1, 11):
            inner = ", ".join(each.format(place, number - 1) for place in range(10))
            lines.append(f"v{number}: &v{number} {whole.format(inner)}")
        assert "more than 50,000 values" in problems(tmp_path, "\n".join(lines))[0]

    @pytest.mark.parametrize("text", ["a: !!timestamp x", "a: !!int z", "a: &a [*a]", "[" * 9_000])
    def test_a_value_that_yaml_cannot_make_is_an_error(self, tmp_path: Path, text: str) -> None:
        """What is not of its tag's type, holds itself, or lies too deep."""
        assert "not valid YAML" in problems(tmp_path, text)[0]

    def test_a_named_file_must_exist(self, tmp_path: Path) -> None:
        """--config with a typo does not start on defaults."""
        (line,) = problems(tmp_path, config=tmp_path / "no.yaml")
        assert line.startswith(f"{tmp_path}/no.yaml: cannot be read: No such file or directory")


class TestBetweenKeys:
    @pytest.mark.parametrize("token", ["1234", "abcdefghijklmno", "abcabcabcabcabcabcabc"])
    def test_a_weak_token_is_refused(self, tmp_path: Path, token: str) -> None:
        """One that can be guessed within years at ten tries a minute, on every host."""
        (line,) = problems(tmp_path, f"web: {{token: '{token}'}}")
        assert line.startswith("web.token: must have at least 16 characters, 8 of them different")
        assert token not in line

    @pytest.mark.parametrize("host", ["127.0.0.1", "::1", "192.0.2.1", "chat.example.org"])
    def test_no_host_needs_a_token_in_the_settings(self, tmp_path: Path, host: str) -> None:
        """A start makes one."""
        assert load(tmp_path, f"web: {{host: '{host}'}}").settings.web.token is None

    def test_trusted_proxies_are_addresses_and_networks(self, tmp_path: Path) -> None:
        """A name could lead anywhere."""
        loaded = load(tmp_path, "web: {trusted_proxies: [127.0.0.1, 10.0.0.0/8, '::1']}")
        assert loaded.settings.web.trusted_proxies == ("127.0.0.1", "10.0.0.0/8", "::1")
        (line,) = problems(tmp_path, "web: {trusted_proxies: [proxy.example]}")
        assert "must be addresses or networks, such as 10.0.0.0/8" in line

    def test_secrets_are_not_too_short_to_redact(self, tmp_path: Path) -> None:
        """An empty one is a mistake as well; the value is not shown."""
        (line,) = problems(tmp_path, "web: {token: ''}")
        assert line == (
            "web.token: is shorter than 4 characters; write null for none (parley.yaml)"
        )

    def test_a_webhook_needs_url_and_secret(self, tmp_path: Path) -> None:
        """Both missing keys are named."""
        lines = problems(tmp_path, "platforms: {telegram: {mode: webhook}}")
        assert [line.partition(":")[0] for line in lines] == [
            "platforms.telegram.webhook_url",
            "platforms.telegram.webhook_secret",
        ]

    @pytest.mark.parametrize(
        ("yaml", "key"),
        [
            ("model: {base_url: 'localhost:1'}", "model.base_url"),
            ("platforms: {telegram: {base_url: 'ftp://x'}}", "platforms.telegram.base_url"),
            ("platforms: {discord: {gateway_url: 'http://x'}}", "platforms.discord.gateway_url"),
        ],
    )
    def test_addresses_have_a_scheme(self, tmp_path: Path, yaml: str, key: str) -> None:
        """A URL without one would fail much later."""
        (line,) = problems(tmp_path, yaml)
        assert line.startswith(f"{key}: must begin with ")

    def test_an_owner_has_platform_and_id(self, tmp_path: Path) -> None:
        """A bare id would never match anybody."""
        assert load(tmp_path, "access: {owners: [telegram:42]}").settings.access.owners
        (line,) = problems(tmp_path, "access: {owners: [42]}")
        assert line.startswith("access.owners: '42' must be PLATFORM:ID")

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://u:hunter22@h/d",
            "postgres://h/d",
            "postgresql://u:p%40ss@h:5433/d?sslmode=verify-full&sslrootcert=/etc/ca.pem",
            "postgresql://u@/d?host=/run/postgresql",
            "postgresql://u:hunter22@one:5432,two:5432/d?target_session_attrs=read-write",
            "postgresql://[::1]:5432/d",
        ],
    )
    def test_a_server_is_taken(self, tmp_path: Path, url: str) -> None:
        """TLS, sockets and several hosts are the URL's, as libpq reads it."""
        settings = load(tmp_path, f"storage: {{url: '{url}'}}").settings
        assert location_of(settings) == DatabaseServer(SecretStr(url))

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://u:hunter/22@h/d",
            "postgresql://u:hunter@22@h:x/d",
            "postgresql://u:hunter22@h",
            "postgresql://u:hunter22@h/d#f",
            "postgresql://u:hunter22@h/d/e",
            "postgresql://u:hunter22@[::1/d",
        ],
    )
    def test_an_address_that_libpq_would_not_read_is_refused(
        self, tmp_path: Path, url: str
    ) -> None:
        """No part of it is quoted: nobody can tell which one is the password."""
        (line,) = problems(tmp_path, f"storage: {{url: '{url}'}}")
        assert line.startswith("storage.url: must be postgresql://")
        assert "hunter" not in line

    def test_a_server_needs_its_driver(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is an extra, since nobody with a file needs it."""
        monkeypatch.setattr("gateway.settings.rules.find_spec", lambda _: None)
        (line,) = problems(tmp_path, "storage: {url: 'postgresql://h/d'}")
        assert "pip install 'parley[postgres]'" in line

    def test_a_direct_way_tells_that_there_is_a_pooler(self, tmp_path: Path) -> None:
        """It passes on neither notices nor locks of a session."""
        direct, pooler = "postgresql://h/d", "url: 'postgresql://pool:6432/d'"
        settings = load(tmp_path, f"storage: {{{pooler}, direct_url: '{direct}'}}").settings
        server = location_of(settings)
        assert isinstance(server, DatabaseServer)
        assert server.pooled
        assert server.direct.get_secret_value() == direct

    def test_what_is_of_a_server_is_refused_for_a_file(self, tmp_path: Path) -> None:
        """It would have no effect."""
        lines = problems(tmp_path, "storage: {direct_url: 'postgresql://h/d', migrate: wait}")
        assert [line.split(":")[0] for line in lines] == ["storage.direct_url", "storage.migrate"]

    @pytest.mark.parametrize("source", ["env:DATABASE_URL", "file:{}/url"])
    def test_an_address_may_be_referred_to(self, tmp_path: Path, source: str) -> None:
        """As every secret may; its password is known as one."""
        url = "postgresql://u:hunter%4022x@h/d?sslpassword=another%2Bone1"
        (tmp_path / "url").write_text(url + "\n")
        (tmp_path / "url").chmod(0o600)
        config = tmp_path / "parley.yaml"
        config.write_text(f"storage: {{url: '{source.format(tmp_path)}'}}")
        environ = {"PARLEY_HOME": str(tmp_path), "DATABASE_URL": url}
        settings = load_settings(environ=environ).settings
        server = location_of(settings)
        assert isinstance(server, DatabaseServer)
        assert server.url.get_secret_value() == url
        known = {"hunter%4022x", "hunter@22x", "another%2Bone1", "another+one1"}
        assert known < set(secret_values(settings))

    @pytest.mark.parametrize(
        "url", ["mysql://x/y", "/var/lib/x.db", "sqlite://", "sqlite:///:memory:"]
    )
    def test_other_databases_are_refused(self, tmp_path: Path, url: str) -> None:
        """SQLite in memory would forget what was acknowledged."""
        (line,) = problems(tmp_path, f"storage: {{url: '{url}'}}")
        assert line.startswith("storage.url: must ")

    def test_a_sqlite_alone_is_taken(self, tmp_path: Path) -> None:
        """The database may lie elsewhere."""
        assert load(tmp_path, "storage: {url: 'sqlite:////tmp/x.db'}").settings.storage.url


# When a change of a key takes effect


def test_each_key_has_a_mark() -> None:
    """Also the keys inside blocks."""
    assert {key.mark for key in Keys(Settings)} == {"live", "next-turn", "restart"}


def test_positions_do_not_matter() -> None:
    """A block of a list has the marks of any block."""
    assert mark_of(("platforms", "slack", 1, "mode")) == "restart"
    assert mark_of(("platforms", "slack", "mode")) == "restart"
    assert mark_of(("platforms", "slack", 1, "bot_token")) == "live"
    assert mark_of(("fallbacks", 0, "name")) == "next-turn"


def test_a_section_without_a_mark_is_an_error() -> None:
    """Nobody can forget it."""

    class Unmarked(Section):
        key: int = 1

    with pytest.raises(KeyError, match="key has no mark"):
        Keys(Unmarked)
    with pytest.raises(KeyError):
        mark_of(("no_such_section", "key"))


def test_the_page_tells_each_mark() -> None:
    """docs/configuration.md, "When a change takes effect"."""
    page = (
        CONFIGURATION_PAGE
        .read_text()
        .partition("## When a change takes effect")[2]
        .partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `(\w+)` \| ([\w-]+) \| (.*) \|$", page, re.M)
    keys = {key.pattern: key.mark for key in Keys(Settings)}
    sections = {path[0]: mark for path, mark in keys.items() if len(path) == 1}
    assert {section: mark for section, mark, _ in rows} == sections
    told = [pair for *_, rest in rows for pair in re.findall(r"`([\w.]+)`: ([\w-]+)", rest)]
    assert dict(told) == {
        dotted(path): mark for path, mark in keys.items() if mark != keys.get(path[:-1], mark)
    }


# How many there are

MOST_SETTINGS = 150


def counted() -> set[str]:
    """Return what a person can write and `parley config show` prints, each block's keys once.

    Not headings, PARLEY_HOME, or the names and the inside of maps. `fallbacks` and `auxiliary`
    repeat the keys of `model`; accounts share some.
    """
    found = set()
    for key in all_keys():
        head, *rest = key.pattern
        if key.kind == "section" or key.lone_block or head == "home":
            continue
        if head == "platforms" and rest[-1] in AccountSettings.model_fields:
            found.add(f"platforms.{rest[-1]}")
        elif head == "auxiliary" and rest[-1] == "model":
            found.add("auxiliary.model")
        elif head != "auxiliary":
            found.add(".".join(key.pattern))
    return {name for name in found if not name.startswith("fallbacks.")}


def test_there_are_few_settings() -> None:
    """A new one needs a reason: would the operator of a family, a team or a company turn it?"""
    assert len(counted()) <= MOST_SETTINGS, sorted(counted())
