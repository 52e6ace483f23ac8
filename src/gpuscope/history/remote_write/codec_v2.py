"""Prometheus' remote write 2.0, the message `io.prometheus.write.v2.Request`: decode only, sending stays 1.0.

Strings are in one table; series refer to it by number. A reference beyond the table, or an odd number of label
references, makes the request invalid. Samples come out as from the 1.0 decoder; native histograms and exemplars
are counted, metadata and created timestamps are skipped: nothing here keeps them.
"""

from __future__ import annotations

from gpuscope.base.varint import WireError, read_varint
from gpuscope.history.remote_write.codec import (
    REFUSALS,
    Decoded,
    Labels,
    OversizedLabels,
    SeriesDecoder,
    read_length,
    read_sample,
    skip_number,
)

_SYMBOLS, _TIMESERIES = 4, 5
_LABELS_REFS, _SAMPLES, _HISTOGRAMS, _EXEMPLARS = 1, 2, 3, 4
_MAX_REF_BYTES = 10
_SEPARATOR = b"\xff"
"""A byte that does not occur in UTF-8."""


class WriteDecoderV2(SeriesDecoder):
    """Remote write 2.0. Not for several threads at once."""

    def decode(self, body: bytes) -> Decoded:
        symbols, messages = self._pieces(body)
        decoded = Decoded()
        for start, stop in messages:  # symbols may come after the series that use them
            try:
                self._series(body, start, stop, symbols, decoded)
            except OversizedLabels:
                decoded.oversized += 1
            self._limits.check_samples(decoded.size())
        return decoded

    def _pieces(self, body: bytes) -> tuple[list[bytes], list[tuple[int, int]]]:
        """The symbol table, and the start and end offset of each series."""
        symbols: list[bytes] = []
        messages: list[tuple[int, int]] = []
        max_symbols, others = self._limits.max_symbols, 0
        position, end = 0, len(body)
        while position < end:
            # Without calls where a number has one byte: a small request has millions of the smallest fields,
            # and while this runs other threads wait for the interpreter.
            tag = body[position]
            position += 1
            if tag >= 0x80:
                tag, position = read_varint(body, position - 1, end)
            if tag & 7 != 2 or not tag >> 3:
                raise WireError("not a remote-write 2.0 request")
            if position < end and body[position] < 0x80 and position + body[position] < end:
                start = position + 1
                position = start + body[position]
            else:
                length, start = read_length(body, position, end)
                position = start + length
            if tag >> 3 == _SYMBOLS:
                symbols.append(body[start:position])
                if len(symbols) > max_symbols:
                    self._limits.check_symbols(len(symbols))
            elif tag >> 3 == _TIMESERIES:
                messages.append((start, position))
                self._limits.check_samples(len(messages))
            else:
                others += 1
                self._limits.check_samples(others)
        return symbols, messages

    def _series(self, body: bytes, position: int, end: int, symbols: list[bytes], decoded: Decoded) -> None:
        refs: list[int] = []
        samples: list[tuple[int, float]] = []
        histograms = count = 0
        max_fields = self._limits.max_fields_per_series()
        while position < end:
            count += 1
            if count > max_fields:
                self._limits.check_samples(count)
            tag, position = read_varint(body, position, end)
            number, kind = tag >> 3, tag & 7
            if kind != 2:
                start = position
                position = skip_number(body, position, end, kind)
                if number == _LABELS_REFS and kind == 0:  # an unpacked reference
                    refs.append(read_varint(body, start, end)[0])
                    self._limits.check_labels_of_series(len(refs) // 2)
                continue
            length, start = read_length(body, position, end)
            position = start + length
            if number == _LABELS_REFS:
                self._limits.check_labels((decoded.labels + len(refs) + length) // 2)
                self._limits.check_labels_of_series(length // (2 * _MAX_REF_BYTES))
                refs += _numbers(body, start, position)
                self._limits.check_labels_of_series(len(refs) // 2)
            elif number == _SAMPLES:
                samples.append(read_sample(body[start:position]))
            elif number == _HISTOGRAMS:
                histograms += 1
            elif number == _EXEMPLARS:
                decoded.exemplars += 1
        decoded.labels += len(refs)
        self._limits.check_labels(decoded.labels // 2)
        raw = _referred(refs, symbols)
        decoded.text_bytes += sum(map(len, raw))
        self._limits.check_text(decoded.text_bytes)
        if samples or histograms:
            _add(decoded, self._number(raw), samples, histograms)
        else:
            decoded.no_samples += 1

    def _number(self, raw: list[bytes]) -> int | None:
        key = _SEPARATOR.join(raw)
        number = self._known.get(key)
        # A symbol that contains the separator is not UTF-8, and its key could equal that of other labels.
        if number is not None and key.count(_SEPARATOR) == len(raw) - 1:
            return number
        for name, value in zip(raw[::2], raw[1::2], strict=True):
            self._limits.check_label(len(name), len(value))
        labels = _labels(raw)
        number = self._resolve(labels) if labels else None
        if number is not None and number >= 0:
            self._remember(key, number)
        return number


def _referred(refs: list[int], symbols: list[bytes]) -> list[bytes]:
    if len(refs) % 2:
        raise WireError("a series has an odd number of label references")
    try:
        return [symbols[ref] for ref in refs]
    except IndexError:
        raise WireError(f"label reference {max(refs)} is beyond the {len(symbols)} symbols") from None


def _add(decoded: Decoded, number: int | None, samples: list[tuple[int, float]], histograms: int) -> None:
    if number is None:
        decoded.invalid += len(samples) + histograms
    elif number in REFUSALS:
        decoded.refused[number] += len(samples) + histograms
    else:
        decoded.histograms += histograms
        for at, value in samples:
            decoded.series.append(number)
            decoded.times.append(at)
            decoded.values.append(value)


def _labels(raw: list[bytes]) -> Labels:
    """Empty if they are not UTF-8."""
    try:
        texts = [symbol.decode("utf-8") for symbol in raw]
    except UnicodeDecodeError:
        return ()
    return tuple(sorted(zip(texts[::2], texts[1::2], strict=True)))


def _numbers(body: bytes, position: int, end: int) -> list[int]:
    """Packed varints."""
    numbers: list[int] = []
    while position < end:
        byte = body[position]
        if byte < 0x80:
            numbers.append(byte)
            position += 1
        else:
            number, position = read_varint(body, position, end)
            numbers.append(number)
    return numbers
