import copy
import dataclasses
import pickle
import re
import tomllib

import numpy as np
import pytest

from flare.config import (
    SECTIONS,
    Config,
    Options,
    SchedulingConfig,
    WirelessConfig,
    load,
    names,
    override,
    to_toml,
    with_settings,
)
from flare.config.setting import declared, dotted, quantity
from flare.uplink import CODECS
from flare.uplink.air import AIR_SCHEMES


@pytest.fixture
def write(tmp_path):
    def written(text, encoding="utf-8"):
        path = tmp_path / "run.toml"
        path.write_bytes(text.encode(encoding))
        return path

    return written


def settings():
    """Every key of the file: (section, field)."""
    yield from (("", each) for each in dataclasses.fields(Config) if "doc" in each.metadata)
    for name, section in (("wireless", WirelessConfig), ("scheduling", SchedulingConfig)):
        yield from ((name, each) for each in dataclasses.fields(section))


def test_defaults_are_the_papers_mnist_cell():
    cell = WirelessConfig()
    assert (cell.num_devices, cell.min_distance_m, cell.max_distance_m, cell.path_loss_exponent) == (40, 100, 500, 3.76)
    assert (cell.power_dbm, cell.noise_dbm_per_mhz, cell.total_bandwidth_hz) == (20, -114, 10e6)
    assert (cell.cpu_min_hz, cell.cpu_max_hz, cell.payload_bits, cell.deadline_s) == (2e9, 4e9, 1e7, 0.4)
    assert cell.cycles_per_sample == 110 * 28 * 28 * 8  # cycles/bit x bits of a sample
    assert SchedulingConfig() == SchedulingConfig(policy="exact", gamma=10.0)


def test_every_default_is_what_its_own_setting_may_be():
    """So that a setting that is its default need not be checked."""
    makers = [each.make for each in (*CODECS.values(), *AIR_SCHEMES.values())]
    with_options = [each for each in makers if dataclasses.is_dataclass(each)]
    assert with_options
    for section in (Config, *SECTIONS.values(), *with_options):
        for each in dataclasses.fields(section):
            if "limits" in each.metadata and not isinstance(each.default, Options):
                found = declared(each).converted(each.default)
                assert (type(found), found) == (type(each.default), each.default), each.name


def test_an_empty_file_is_the_default(write):
    assert load(write("")) == Config()


def test_what_a_file_says_replaces_the_default_and_nothing_else(write):
    config = load(write("seed = 7\n[wireless]\nnum_devices = 60\n[scheduling]\ngamma = 0.5\n"))
    assert config == Config(7, WirelessConfig(num_devices=60), SchedulingConfig(gamma=0.5))


def test_a_byte_order_mark_and_windows_line_ends_are_read(write):
    assert load(write("seed = 7\r\n[scheduling]\r\ngamma = 1\r\n", "utf-8-sig")).scheduling.gamma == 1.0


def test_whole_numbers_stand_for_numbers_and_lists_for_tuples(write):
    text = '[wireless]\ndeadline_s = 1\nnum_devices = 6\ntau_law = "groups"\ntau_values = [12, 6, 3]\n'
    wireless = load(write(text)).wireless
    assert isinstance(wireless.deadline_s, float)
    assert wireless.deadline_s == 1.0
    assert wireless.tau_values == (12, 6, 3)


def test_numpy_numbers_become_plain_ones():
    wireless = WirelessConfig(num_devices=np.int64(3), deadline_s=np.float32(0.5), tau_law="list", tau_values=[1, 2, 3])
    assert (type(wireless.num_devices), type(wireless.deadline_s)) == (int, float)
    assert hash(wireless) == hash(dataclasses.replace(wireless))


CHANGED = Config(
    seed=2**40,
    wireless=WirelessConfig(
        num_devices=3,
        path_loss="3gpp-uma",
        shadowing_db=8.0,
        fading="rician",
        rician_k_db=-1.5,
        noise_dbm_per_mhz=-113.975,
        total_bandwidth_hz=12345678.9,
        payload_bits=1 / 3,
        cpu_max_hz=1e15,
        cpu_every_round=False,
        tau_law="list",
        tau_values=(1, 2, 3),
        trace='/a "quoted"\\ \t\x7fäπ😀/t.csv',
        trace_repeat=True,
    ),
    scheduling=SchedulingConfig(
        policy="my-own",
        gamma=0.0,
        options=Options(
            zeta=3,
            alpha=1e-300,
            big=2.0**70,
            least=-(2**63) + 1,
            yes=True,
            word='a "b"\n\x7f\x1b[31mπ',
            many=[1, 2.5, "x"],
        ),
    ),
)


@pytest.mark.parametrize("config", [Config(), CHANGED], ids=["default", "changed"])
def test_the_written_file_reads_back_the_same(write, config):
    assert load(write(to_toml(config))) == config


def test_the_written_file_has_every_key_with_its_comment_above():
    text = to_toml(Config())
    lines = text.splitlines()
    table = tomllib.loads(text)
    for section, each in settings():
        assert each.name in (table[section] if section else table)
        opening = f"[{section}.{each.name}]" if isinstance(each.default, Options) else f"{each.name} = "
        above = lines[next(i for i, line in enumerate(lines) if line.startswith(opening)) - 1]
        assert above.startswith(f"# {each.metadata['doc']}")
        assert all(f'"{choice}"' in above for choice in each.metadata["limits"].choices)


def test_every_setting_has_a_one_line_doc_of_its_own():
    docs = [each.metadata["doc"] for _, each in settings()]
    assert all(doc and "\n" not in doc for doc in docs)
    assert len(set(docs)) == len(docs)


def test_round_numbers_are_written_short():
    assert "total_bandwidth_hz = 1e7\n" in to_toml(Config())
    assert "cpu_min_hz = 2e9\n" in to_toml(Config())


def test_a_relative_trace_is_seen_from_the_folder_of_the_file(write, tmp_path, monkeypatch):
    path = write('[wireless]\ntrace = "traces/t.csv"\n')
    assert load(path).wireless.trace == str(tmp_path / "traces" / "t.csv")
    monkeypatch.chdir(tmp_path)
    assert load("run.toml").wireless.trace == str(tmp_path / "traces" / "t.csv")
    assert WirelessConfig(trace="t.csv").trace == str(tmp_path / "t.csv")  # in Python: from the working folder


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("[wireless]\nnum_device = 40\n", "wireless.num_device", "wireless.num_devices"),
        ("[wireless]\nbandwidth_hz = 1e7\n", "wireless.bandwidth_hz", "wireless.total_bandwidth_hz"),
        ("[wireless]\ngamma = 1\n", "wireless.gamma", "scheduling.gamma"),
        ("num_devices = 40\n", "num_devices", "wireless.num_devices"),
        ("sed = 1\n", "sed", "seed"),
        ("[wireles]\nnum_devices = 40\n", "wireles", "wireless"),
        ("[schedule]\ngamma = 1\n", "schedule", "scheduling"),
        ("[scheduling.wireless]\n", "scheduling.wireless", ""),
        ("[learning]\nlr = 0.1\n", "learning.lr", "learning.local_lr or learning.global_lr"),
        ("[learning]\nlearning_rate = 0.1\n", "learning.learning_rate", "learning.local_lr or learning.global_lr"),
        ("[run]\neta = 0.1\n", "run.eta", "learning.local_lr or learning.global_lr"),
        ("lr = 0.1\n", "lr", "learning.local_lr or learning.global_lr"),
        ("[learning]\nbatch_size = 8\n", "learning.batch_size", "wireless.batch_size"),
        ("[learning]\nbatch = 8\n", "learning.batch", "wireless.batch_size"),
        ("[learning]\nepochs = 8\n", "learning.epochs", "run.rounds or wireless.tau_mean"),
        ("[wireless]\nK = 8\n", "wireless.K", "wireless.num_devices"),
        ("[wireless]\ndevices = 8\n", "wireless.devices", "wireless.num_devices"),
        ("[data]\nnum_clients = 8\n", "data.num_clients", "wireless.num_devices"),
        ("bandwidth = 8\n", "bandwidth", "wireless.total_bandwidth_hz"),
        ("[run]\ndeadline = 8\n", "run.deadline", "wireless.deadline_s or fleet.deadline"),
        ("[wireless]\npayload = 8\n", "wireless.payload", "run.payload"),
        ("[run]\nseed = 8\n", "run.seed", "seed"),
        ("[learning]\npolicy = 8\n", "learning.policy", "scheduling.policy"),
        ("[data]\nalpha = 8\n", "data.alpha", "data.dirichlet_alpha"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(write, text, key, nearest):
    path = write(text)
    with pytest.raises(ValueError, match="unknown key") as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: unknown key {key}; the nearest known key is {nearest}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed = -1", "seed is -1; it must be a whole number, at least 0"),
        ("seed = 1.0", "seed is 1.0; it must be a whole number, at least 0"),
        ("seed = true", "seed is true; it must be a whole number"),
        ("[seed]", "seed is a section; it must be a whole number"),
        ("wireless = 3", "wireless is 3; it must be a section: write [wireless]"),
        ("[[wireless]]", "wireless is [{}]; it must be a section"),
        ('[wireless]\nnum_devices = "40"', 'wireless.num_devices is the text "40"; it must be a whole number'),
        ("[wireless]\nnum_devices = 0", "wireless.num_devices is 0; it must be a whole number, at least 1"),
        ("[wireless]\nnum_devices = 40.0", "wireless.num_devices is 40.0; it must be a whole number"),
        ("[wireless]\nnum_devices = true", "wireless.num_devices is true; it must be a whole number"),
        ("[wireless]\nnum_devices = 1_000_000_000_000", "it must be a whole number, at least 1, at most 10000000"),
        ("[wireless]\ndeadline_s = 0", "wireless.deadline_s is 0; it must be a finite number, greater than 0"),
        ("[wireless]\ndeadline_s = nan", "wireless.deadline_s is nan; it must be a finite number"),
        ("[wireless]\ndeadline_s = inf", "wireless.deadline_s is inf; it must be a finite number"),
        ("[wireless]\ndeadline_s = true", "wireless.deadline_s is true; it must be a finite number"),
        ("[wireless]\ndeadline_s = 1979-05-27", "wireless.deadline_s is 1979-05-27; it must be a finite number"),
        ("[wireless]\npayload_bits = 1" + "0" * 400, "it must be a finite number, greater than 0"),
        ("[wireless]\nshadowing_db = -1.5", "wireless.shadowing_db is -1.5; it must be a finite number, at least 0"),
        ("[wireless]\npower_dbm = 1e5", "wireless.power_dbm is 100000.0; it must be a finite number, at least -200"),
        ("[wireless]\ncpu_every_round = 1", "wireless.cpu_every_round is 1; it must be true or false"),
        (
            '[wireless]\nfading = "ricean"',
            'fading is the text "ricean"; it must be one of "none", "rician", "rayleigh"',
        ),
        ("[wireless]\npath_loss = 3.76", 'wireless.path_loss is 3.76; it must be one of "exponent", "3gpp-uma"'),
        ("[wireless]\ntrace = 3", "wireless.trace is 3; it must be text in quotes"),
        ("[wireless]\ntau_values = 3", "wireless.tau_values is 3; it must be a list of whole numbers, each at least 1"),
        ("[wireless]\ntau_values = [3, 0]", "wireless.tau_values is [3, 0]; it must be a list of whole numbers"),
        ("[wireless]\ntau_values = [3, 1.5]", "wireless.tau_values is [3, 1.5]; it must be a list of whole numbers"),
        ("[wireless]\ntau_values = [true]", "wireless.tau_values is [True]; it must be a list of whole numbers"),
        ("[scheduling]\ngamma = -0.1", "scheduling.gamma is -0.1; it must be a finite number, at least 0"),
        ('[scheduling]\npolicy = " "', 'scheduling.policy is " "; it must be the name of a policy'),
        ("[scheduling]\npolicy = 1", "scheduling.policy is 1; it must be text in quotes"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(write, text, says):
    path = write(text)
    with pytest.raises(ValueError, match="must be") as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("min_distance_m = 600", "wireless.min_distance_m is 600, more than wireless.max_distance_m, 500"),
        ("max_distance_m = 50", "wireless.min_distance_m is 100, more than wireless.max_distance_m, 50"),
        ("cpu_min_hz = 5e9", "wireless.cpu_min_hz is 5e+09, more than wireless.cpu_max_hz, 4e+09"),
        ("tau_values = [1, 2]", 'wireless.tau_values has 2 values, but wireless.tau_law is "exponential"'),
        ('tau_law = "list"', "wireless.tau_values has 0 values, but wireless.num_devices is 40"),
        ('tau_law = "list"\ntau_values = [1, 2]', "wireless.tau_values has 2 values, but wireless.num_devices is 40"),
        ('tau_law = "groups"', "wireless.tau_values has 0 values, but wireless.num_devices is 40"),
        ('tau_law = "groups"\ntau_values = [12, 6, 3]', "their number divides num_devices"),
    ],
)
def test_settings_that_contradict_each_other(write, text, says):
    path = write(f"[wireless]\n{text}\n")
    with pytest.raises(ValueError, match="must") as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert says in str(raised.value)


def test_equal_limits_are_no_contradiction():
    assert WirelessConfig(min_distance_m=200.0, max_distance_m=200.0, cpu_min_hz=3e9, cpu_max_hz=3e9).num_devices == 40


def test_the_constructor_checks_as_the_file_does():
    with pytest.raises(ValueError, match=r"^wireless\.batch_size is 0; it must be a whole number, at least 1"):
        WirelessConfig(batch_size=0)


def test_a_syntax_error_names_the_file_and_the_line(write):
    path = write("seed = 1\n[wireless\n")
    with pytest.raises(ValueError, match=r"not valid TOML.*line 2") as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_key_given_twice_is_a_syntax_error(write):
    with pytest.raises(ValueError, match=r"not valid TOML.*line 2"):
        load(write("seed = 1\nseed = 2\n"))


def test_a_number_too_long_to_read_names_the_file(write):
    path = write("seed = 1" + "0" * 5000)
    with pytest.raises(ValueError, match="not valid TOML") as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_file_that_is_no_text(write):
    with pytest.raises(ValueError, match=r"run\.toml: is not UTF-8 text"):
        load(write("# ä", "latin-1"))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"none\.toml: cannot be read \(No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize("section", ["data", "fleet", "learning", "run", "scheduling", "wireless"])
def test_where_nothing_is_near_the_keys_of_the_section_are_listed(section):
    with pytest.raises(ValueError, match="unknown key") as raised:
        override(Config(), [f"{section}.zzzzzz=1"])
    keys = [each.name for each in dataclasses.fields(SECTIONS[section])]
    assert str(raised.value) == f"unknown key {section}.zzzzzz; [{section}] has the keys {', '.join(keys)}"


def test_every_meaning_is_of_a_setting_and_no_name_of_one():
    known = {f"{name}.{each.name}" for name, kind in SECTIONS.items() for each in dataclasses.fields(kind)} | {"seed"}
    words = {word for words in names.MEANINGS.values() for word in words.split()}
    assert set(names.MEANINGS) <= known
    names_too = words & {name.rpartition(".")[2] for name in known}
    assert names_too == {"deadline"}  # any other such word would be found by its name already


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("run=3", "run is a section, not a setting; write run.KEY=value, such as run.rounds=..."),
        ("wireless={}", "wireless is a section, not a setting"),
        ("run.=3", "run is a section, not a setting"),
        (".=3", "is no name of a setting"),
        ("=", "is not a setting"),
        (".plugins=x.py", "'.plugins' is no name of a setting"),
        ("seed.=3", "'seed.' is no name of a setting"),
        ("train.lr=1", "unknown section train; did you mean learning.local_lr or learning.global_lr? The sections are"),
        ("zz.yyyyy=1", "unknown section zz; the sections are wireless, scheduling, uplink, data, learning, run"),
        ("run.rounds=" + "[" * 3000, "run.rounds: its value cannot be read: its brackets are nested too deep"),
        ("seed=1" + "0" * 5000, "seed: its value cannot be read"),
        ("run.rounds=3\nseed = 5", 'run.rounds is the text "3\nseed = 5"; it must be a whole number'),
        ("learning.model=\udcff", "learning.model is the text"),
    ],
)
def test_a_single_setting_that_cannot_be_is_refused_in_words(setting, says):
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        override(Config(), [setting])
    assert len(str(raised.value)) < 600


WITH_UNITS = {
    "wireless.min_distance_m": ("0.05km", 50.0),
    "wireless.max_distance_m": ("0.75 km", 750.0),
    "wireless.shadowing_db": ("8dB", 8.0),
    "wireless.rician_k_db": ("3 dB", 3.0),
    "wireless.power_dbm": ("100mW", 20.0),
    "wireless.downlink_power_dbm": ("10W", 40.0),
    "wireless.noise_dbm_per_mhz": ("-170dBm/Hz", -110.0),
    "wireless.total_bandwidth_hz": ("20MHz", 20e6),
    "wireless.block_hz": ("180kHz", 180e3),
    "wireless.deadline_s": ("250ms", 0.25),
    "wireless.payload_bits": ("1.25MB", 1e7),
    "wireless.cpu_min_hz": ("1GHz", 1e9),
    "wireless.cpu_max_hz": ("5 GHz", 5e9),
    "run.seconds": ("10min", 600.0),
}


def test_every_setting_with_a_unit_in_its_name_reads_text_with_one(write):
    measured = {
        dotted(section, each.name)
        for section, kind in SECTIONS.items()
        for each in dataclasses.fields(kind)
        if quantity(each) is not None
    }
    assert measured == set(WITH_UNITS)  # a new one belongs into the list above
    for key, (text, value) in WITH_UNITS.items():
        section, _, name = key.partition(".")
        single = override(Config(), [f"{key}={text}"])
        filed = load(write(f'[{section}]\n{name} = "{text}"\n'))
        made = dataclasses.replace(getattr(Config(), section), **{name: text})
        for one in (getattr(single, section), getattr(filed, section), made):
            assert getattr(one, name) == pytest.approx(value, rel=1e-14), key
        assert load(write(to_toml(single))) == single


def test_the_written_file_says_how_units_are_written():
    text = to_toml(Config())
    assert '# when a round must be over, s (or with a unit: "400ms")\n' in text
    assert text.count("(or with a unit: ") == len(WITH_UNITS)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("wireless.deadline_s=400MHz", "wireless.deadline_s: '400MHz' is not a time: unknown unit 'MHz', known"),
        ("wireless.deadline_s=400mx", "known are s, sec, min, h; write for example 400ms (a bare number is in s)"),
        ("wireless.deadline_s=soon", "wireless.deadline_s: 'soon' is not a time: it does not start with a number"),
        ("wireless.deadline_s=", "wireless.deadline_s: '' is not a time"),
        ("wireless.deadline_s=-3ms", 'wireless.deadline_s is the text "-3ms"; it must be a finite number, greater'),
        ("wireless.noise_dbm_per_mhz=-174dBm", "wireless.noise_dbm_per_mhz: '-174dBm' is not a noise density"),
        ("wireless.power_dbm=1e30W", 'wireless.power_dbm is the text "1e30W"; it must be a finite number'),
        ("wireless.num_devices=3s", 'wireless.num_devices is the text "3s"; it must be a whole number'),
        ("wireless.tau_mean=3s", 'wireless.tau_mean is the text "3s"; it must be a finite number'),
        ("wireless.payload_bits=1" + "x" * 5000, "is not a data size"),
    ],
)
def test_a_wrong_unit_names_the_key_and_the_right_form(setting, says):
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        override(Config(), [setting])
    assert len(str(raised.value)) < 600


# --- options of a policy ------------------------------------------------------------------------------------------


def test_options_are_a_table_of_the_file_and_single_settings(write):
    wanted = SchedulingConfig(policy="ps", options=Options(num_selected=3, name="x"))
    in_file = load(write('[scheduling]\npolicy = "ps"\n[scheduling.options]\nname = "x"\nnum_selected = 3\n'))
    first = load(write('[scheduling.options]\nname = "x"\nnum_selected = 3\n[scheduling]\npolicy = "ps"\n'))
    single = ["scheduling.policy=ps", "scheduling.options.num_selected=3", "scheduling.options.name=x"]
    assert in_file.scheduling == first.scheduling == override(Config(), single).scheduling == wanted


def test_a_single_option_leaves_the_others_and_a_whole_table_replaces_them():
    base = override(Config(), ["scheduling.options.a=1", "scheduling.options.b=2"])
    assert override(base, ["scheduling.options.b=3"]).scheduling.options == Options(a=1, b=3)
    assert override(base, ["scheduling.options={c = 3}"]).scheduling.options == Options(c=3)
    assert override(base, ["scheduling.options={}", "scheduling.options.d=4"]).scheduling.options == Options(d=4)


def test_options_are_equal_in_any_order_and_told_apart_by_type():
    assert Options(a=1, b=(2, 3)) == Options({"b": [2, 3], "a": np.int64(1)})
    assert hash(Options(a=1, b=2.0)) == hash(Options(b=2.0, a=1))
    assert len({Options(a=1), Options(a=1.0), Options(a=True), Options(a="1"), Options(b=1), Options()}) == 6
    assert Options(a=1) != {"a": 1}
    assert not Options()
    assert dict(Options(b=1, a=2)) == {"a": 2, "b": 1}


def test_options_do_not_change_and_survive_a_pickle():
    config = override(Config(), ["scheduling.options.num_selected=3"])
    with pytest.raises(TypeError):
        config.scheduling.options["num_selected"] = 4
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    assert {config: 1}[dataclasses.replace(config, seed=0)] == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"a b": 1}, "'a b' is no name of an option"),
        ({"": 1}, "'' is no name of an option"),
        ({"lambda": 1}, "'lambda' is no name of an option"),
        ({"é": 1}, "is no name of an option"),
        ({"x\x1b[31m": 1}, r"'x\x1b[31m' is no name of an option"),
        ({1: 1}, "1 is no name of an option"),
        ({"a" * 65: 1}, "has 65 letters; give at most 64"),
        ({"a": None}, "option a is None; it must be true or false, a finite number, text, or a list of these"),
        ({"a": float("nan")}, "option a is nan; it must be"),
        ({"a": float("inf")}, "option a is inf; it must be"),
        ({"a": 2**63}, "option a is a whole number beyond what can be kept; give one from -9223372036854775807 to"),
        ({"a": -(10**5000)}, "option a is a whole number beyond what can be kept"),
        ({"a": {"b": 1}}, "option a is {'b': 1}; it must be"),
        ({"a": [[1]]}, "option a is [1]; it must be"),
        ({"a": "x" * 1001}, "option a is a text of 1001 characters; give at most 1000"),
        ({"a": "\udcff"}, "option a is a text of 1 characters"),
        ({"a": [0] * 10_001}, "option a is a list of 10001 values; give at most 10000"),
        ({f"a{i}": 1 for i in range(101)}, "there are 101 options; give at most 100"),
    ],
)
def test_absurd_options_are_refused_in_words(given, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Options(given)
    with pytest.raises(ValueError, match=r"^scheduling\.options: ") as raised:
        SchedulingConfig(options=given)
    assert says in str(raised.value)


def test_options_that_are_no_table(write):
    with pytest.raises(
        ValueError, match=r"scheduling\.options is 3; it must be a table: write \[scheduling\.options\]"
    ):
        load(write("[scheduling]\noptions = 3\n"))


def test_the_former_key_is_read_in_files_and_refused_with_its_new_place_elsewhere(write):
    path = write('[scheduling]\npolicy = "ps"\nnum_selected = 3\n')
    assert load(path).scheduling == SchedulingConfig(policy="ps", options=Options(num_selected=3))
    assert load(write("[scheduling]\nnum_selected = 0\n")) == Config()
    with pytest.raises(ValueError, match=r"scheduling\.num_selected has moved: .* \[scheduling\.options\]"):
        override(Config(), ["scheduling.num_selected=3"])


# --- files that are no configuration ------------------------------------------------------------------------------


def test_brackets_nested_deep(write):
    for text in ("seed = " + "[" * 3000, "[wireless]\ntau_values = " + "{a = " * 3000, "[" * 3000):
        with pytest.raises(ValueError, match=r"run\.toml: is not valid TOML"):
            load(write(text))


def test_a_file_too_large_for_a_configuration(tmp_path):
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(10 << 30)  # takes no room on the disk
    with pytest.raises(ValueError, match=r"huge\.toml: has 10737418240 bytes; such a file may have at most"):
        load(path)


def test_of_a_setting_that_is_in_a_dict_both_ways_the_later_counts() -> None:
    mine = {"run": {"rounds": 4}}
    assert with_settings(Config(), {**mine, "run.rounds": 3}).run.rounds == 3
    assert with_settings(Config(), {"run.rounds": 3, **mine}).run.rounds == 4
