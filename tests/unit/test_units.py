import math

import numpy as np
import pytest

from flare import units


def test_noise_density_of_the_paper():
    # -114 dBm/MHz = 10^-11.4 mW/MHz = 10^(-11.4 - 3 - 6) W/Hz
    assert units.dbm_per_mhz_to_watt_per_hz(-114.0) == pytest.approx(10.0**-20.4, rel=1e-12)
    assert units.dbm_per_mhz_to_watt_per_hz(-114.0) == pytest.approx(3.98e-21, rel=1e-3)


def test_power_of_the_paper():
    assert units.dbm_to_watt(20.0) == pytest.approx(0.1, rel=1e-15)  # 20 dBm = 100 mW
    assert units.dbm_to_watt(0.0) == 1e-3


@pytest.mark.parametrize("power_dbm", [-114.0, -3.0, 0.0, 20.0, 46.0])
def test_watt_to_dbm_undoes_dbm_to_watt(power_dbm):
    assert units.watt_to_dbm(units.dbm_to_watt(power_dbm)) == pytest.approx(power_dbm, abs=1e-12)


def test_decibels_of_arrays_there_and_back():
    ratio = np.array([1e-12, 0.5, 1.0, 2.0, 1e9])
    assert units.db_to_linear(units.linear_to_db(ratio)) == pytest.approx(ratio, rel=1e-12)
    assert units.linear_to_db(np.array([2.0]))[0] == pytest.approx(3.0103, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "quantity", "value"),
    [
        ("10MHz", "bandwidth", 10e6),
        ("180 kHz", "bandwidth", 180e3),
        ("1e7", "bandwidth", 1e7),
        ("400ms", "time", 0.4),
        ("2 min", "time", 120.0),
        (".5s", "time", 0.5),
        ("250us", "time", 250e-6),
        ("10Mbit", "data size", 1e7),
        ("1.25MB", "data size", 1e7),  # a byte is 8 bit
        ("1250 kB", "data size", 1e7),
        ("1.5 h", "time", 5400.0),
        ("0.5km", "distance", 500.0),
        ("6 dB", "ratio", 6.0),
        ("23dBm", "power", 23.0),
        ("100 mW", "power", 20.0),  # 10 log10(100)
        ("-10dBW", "power", 20.0),
        ("-174dBm/Hz", "noise density", -114.0),  # 10^6 Hz in a MHz: 60 dB
        ("-174 dbm / hz", "noise density", -114.0),
        ("\u2212174 dBm/Hz", "noise density", -114.0),  # the minus of a paper
        ("-144dBm/kHz", "noise density", -114.0),
        ("-114 dBm/MHz", "noise density", -114.0),
        ("-114", "noise density", -114.0),
        ("1e-21W/Hz", "noise density", -120.0),  # 1e-18 mW/Hz is 1e-12 mW/MHz
        ("-3s", "time", -3.0),  # whether a negative time makes sense is not for the parser to say
    ],
)
def test_parse(text, quantity, value):
    assert units.parse(text, quantity) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    ("text", "quantity", "says"),
    [
        ("10 parsec", "time", "parsec"),
        ("10MHz", "time", "MHz"),
        ("10kKHz", "bandwidth", "unknown unit 'kKHz'"),  # two prefixes
        ("10nus", "time", "unknown unit 'nus'"),
        ("1nmin", "time", "unknown unit 'nmin'"),  # minutes and hours take no prefix
        ("1mh", "duration", "unknown unit 'mh'"),
        ("10mHz", "bandwidth", "mHz"),  # millihertz: the writer meant MHz
        ("fast", "bandwidth", "does not start with a number"),
        ("", "data size", "does not start with a number"),
        ("1e400", "time", "too large"),
        ("nan", "time", "does not start with a number"),
        ("-174dB", "noise density", "unknown unit 'dB'.*dBm/MHz, dBm/kHz, dBm/Hz, W/Hz"),
        ("-174dBm", "noise density", "unknown unit 'dBm'"),
        ("0W/Hz", "noise density", "it has no value in dBm/MHz, it must be a finite number above 0"),
        ("-1W", "power", "above 0"),
        ("1e400W", "power", "finite"),
        ("10m", "power", "unknown unit 'm'"),
    ],
)
def test_parse_says_what_it_did_not_understand(text, quantity, says):
    with pytest.raises(ValueError, match=says) as raised:
        units.parse(text, quantity)
    assert f"'{text}' is not a {quantity}" in str(raised.value)
    assert "for example" in str(raised.value)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (4e5, "Hz", "400 kHz"),
        (10e6, "Hz", "10 MHz"),
        (0.4, "s", "400 ms"),
        (2.5e-5, "s", "25 µs"),
        (0.0, "Hz", "0 Hz"),
        (-0.02, "J", "-20 mJ"),
        (999.99, "Hz", "1 kHz"),  # four digits: rounds into the next prefix
        (12345.6, "s", "12346 s"),
        (999.99, "s", "1000 s"),
        (0.796, "Hz", "0.796 Hz"),
        (math.inf, "s", "∞"),
        (math.nan, "s", "–"),
    ],
)
def test_human(value, unit, text):
    assert units.human(value, unit) == text


@pytest.mark.parametrize("value", [1.0, 12.5, 999.0, 1e3, 12.34e6, 7e-7])
def test_parse_reads_what_human_wrote(value):
    assert units.parse(units.human(value, "s" if value < 1 else "Hz"), "time" if value < 1 else "bandwidth") == (
        pytest.approx(value, rel=1e-3)
    )


def test_thermal_noise_is_that_of_the_textbook():
    assert abs(units.THERMAL_NOISE_DBM_PER_MHZ - (-173.975 + 60.0)) < 1e-3


@pytest.mark.parametrize(
    ("text", "quantity", "says"),
    [
        ("10", "bandwidth", "is read as 10 Hz; write the unit, such as 10MHz (10Hz if that is meant)"),
        ("1e7", "bandwidth", "is read as 10 MHz; "),
        ("10", "data size", "is read as 10 bit; write the unit, such as 10Mbit (10bit if that is meant)"),
        ("400", "time", "is read as 400 s; write the unit, such as 400ms (400s if that is meant)"),
        ("-174", "noise density", "is read as -174 dBm/MHz, 60 dB below thermal noise (-113.98 dBm/MHz at 290 K); "),
        ("-174", "noise density", "such as -174dBm/Hz (-174dBm/MHz if that is meant)"),
        ("-83", "noise density", "is read as -83 dBm/MHz, 31 dB above thermal noise"),
    ],
)
def test_a_bare_number_in_doubt(text, quantity, says):
    assert says in units.doubt(text, quantity)


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ("10Hz", "bandwidth"),
        ("10bit", "data size"),
        ("60", "time"),
        ("400s", "time"),
        ("-174dBm/MHz", "noise density"),
        ("-84", "noise density"),
        ("-143.9", "noise density"),
        ("10", "distance"),
    ],
)
def test_nothing_to_doubt(text, quantity):
    assert units.doubt(text, quantity) is None


def test_what_a_name_measures():
    named = {"deadline_s": "time", "total_bandwidth_hz": "bandwidth", "cpu_min_hz": "frequency", "power_dbm": "power"}
    named |= {"noise_dbm_per_mhz": "noise density", "payload_bits": "data size", "rician_k_db": "ratio"}
    named |= {"max_distance_m": "distance", "seconds": "duration", "tau_mean": None, "rounds": None, "fading": None}
    assert {name: units.quantity_of(name) for name in named} == named
