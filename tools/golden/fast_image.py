"""Restores the JPEG of a fast image, slowly and without Forebay's code.

    python3 tools/golden/fast_image.py IMAGE.fjpg > IMAGE.jpg

Written from docs/format/fast-images.md only, so that tests can compare the document with the code.
"""

import pathlib
import struct
import sys

TABLES = pathlib.Path(__file__).resolve().parents[2] / "crates/forebay-jpeg/src/fast/tables.bin"
CONTEXTS = 18
ROOM = 16
"""Blocks of the first component in a row of a tile."""


class Damaged(ValueError):
    """The bytes are not a fast image."""


def require(condition, what):
    if not condition:
        raise Damaged(what)


def crc32c(*parts):
    """The Castagnoli CRC of all parts together."""
    crc = 0xFFFFFFFF
    for part in parts:
        for byte in part:
            crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def crc_entry(byte):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


CRC_TABLE = [crc_entry(byte) for byte in range(256)]


class LowBits:
    """Fields that are filled into bytes from the lowest bit on."""

    def __init__(self, data, at):
        self.data, self.start, self.bit = data, at, 8 * at

    def take(self, width):
        value = 0
        for i in range(width):
            byte = self.bit + i >> 3
            require(byte < len(self.data), "fields after the end of the tile")
            value |= (self.data[byte] >> (self.bit + i & 7) & 1) << i
        self.bit += width
        return value

    @property
    def end(self):
        return (self.bit + 7) >> 3


class HighBits:
    """Codes that are filled into bytes from the highest bit on."""

    def __init__(self, data):
        self.data, self.bit = data, 0

    def symbol(self, codes):
        code = 0
        for length in range(1, 11):
            require(self.bit < 8 * len(self.data), "a stream ends early")
            code = code << 1 | self.data[self.bit >> 3] >> (7 - (self.bit & 7)) & 1
            self.bit += 1
            if (length, code) in codes:
                return codes[length, code]
        raise Damaged("bits that are no code")


def canonical(lengths):
    """Bytes by the length and the number of their codes."""
    codes, code = {}, 0
    for length in range(1, 11):
        for byte, found in enumerate(lengths):
            if found == length:
                codes[length, code] = byte
                code += 1
        code <<= 1
    return codes


def code_tables(number):
    """The codes of each context of a set, counted from 1."""
    data = TABLES.read_bytes()
    require(crc32c(data) == 0x26A51EC3, "the tables are others")
    first = (number - 1) * CONTEXTS * 256
    return [canonical(data[first + 256 * c : first + 256 * (c + 1)]) for c in range(CONTEXTS)]


class Jpeg:
    """The head of a JPEG: shape and codes of its scan."""

    def __init__(self, head):
        require(head[:2] == b"\xff\xd8", "no start of image")
        self.tables, self.restart, at = {}, 0, 2
        while True:
            require(head[at] == 0xFF, "no marker")
            while head[at] == 0xFF:
                at += 1
            marker = head[at]
            at += 1
            if marker == 0x01 or 0xD0 <= marker <= 0xD9:
                continue
            length = struct.unpack_from(">H", head, at)[0]
            payload, at = head[at + 2 : at + length], at + length
            if marker in (0xC0, 0xC1):
                self.frame(payload)
            elif marker == 0xC4:
                self.huffman(payload)
            elif marker == 0xDD:
                self.restart = struct.unpack(">H", payload)[0]
            elif marker == 0xDA:
                count = payload[0]
                self.selectors = [(payload[2 + 2 * i] >> 4, payload[2 + 2 * i] & 15) for i in range(count)]
                require(at == len(head), "the head does not end with the header of the scan")
                return

    def frame(self, payload):
        _, height, width, count = struct.unpack_from(">BHHB", payload)
        self.factors = [(payload[7 + 3 * i] >> 4, payload[7 + 3 * i] & 15) for i in range(count)]
        if count == 1:
            self.factors = [(1, 1)]
        h, v = self.factors[0]
        self.across, self.down = -(-width // (8 * h)), -(-height // (8 * v))

    def huffman(self, payload):
        at = 0
        while at < len(payload):
            counts = payload[at + 1 : at + 17]
            symbols, code, codes = at + 17, 0, {}
            for length, count in enumerate(counts, 1):
                for _ in range(count):
                    codes[payload[symbols]] = (code, length)
                    symbols, code = symbols + 1, code + 1
                code <<= 1
            self.tables[payload[at] >> 4, payload[at] & 15] = codes
            at = symbols


def control_bytes(tile, at, luma, codes):
    """Bitmaps and widths of all blocks, and where they end. `luma` says for each block whether it is one of luma."""
    blocks = len(luma)
    if codes is None:
        lengths = [tile[at + i // 2] >> 4 * (i % 2) & 15 for i in range(blocks)]
        at += (blocks + 1) // 2

        def read(_, count):
            nonlocal at
            at += count
            require(at <= len(tile), "control bytes after the end of the tile")
            return tile[at - count : at]

        bitmaps = [int.from_bytes(read(None, length), "little") for length in lengths]
        return bitmaps, [read(None, (bin(bitmap).count("1") + 7) // 8) for bitmap in bitmaps], at
    packed = struct.unpack_from("<I", tile, at)[0]
    require(packed >> 30 == 0, "lengths of streams")
    at += 4
    starts = [at]
    for i in range(3):
        starts.append(starts[-1] + (packed >> 10 * i & 1023))
    # Where the fourth stream ends is known when its symbols have been read.
    ends = starts[1:] + [len(tile)]
    streams = [HighBits(tile[start:end]) for start, end in zip(starts, ends)]

    def kind(contexts):
        return [streams[i % 4].symbol(codes[context]) for i, context in enumerate(contexts)]

    def grouped(values, counts):
        values = iter(values)
        return [bytes(next(values) for _ in range(count)) for count in counts]

    lengths = kind([0 if is_luma else 1 for is_luma in luma])
    contexts = [(2 if y else 7) + min(place, 4) for y, n in zip(luma, lengths) for place in range(n)]
    bitmaps = [int.from_bytes(one, "little") for one in grouped(kind(contexts), lengths)]
    counts = [(bin(bitmap).count("1") + 7) // 8 for bitmap in bitmaps]
    contexts = [(12 if y else 15) + min(place, 2) for y, n in zip(luma, counts) for place in range(n)]
    widths = grouped(kind(contexts), counts)
    for stream in streams[:3]:
        require((stream.bit + 7) // 8 == len(stream.data), "a stream does not end where the next one begins")
    return bitmaps, widths, starts[3] + (streams[3].bit + 7) // 8


def read_tile(tile, parts, codes):
    """The blocks of a tile, in zigzag order. `parts` are the number of blocks of each part, and whether it is luma."""
    at, length = 1, tile[0]
    if length == 255:
        at, length = 3, struct.unpack_from("<H", tile, 1)[0]
    corrections, at = tile[at : at + length], at + length
    blocks = []
    for count, _ in parts:
        head = struct.unpack_from("<H", tile, at)[0]
        dc, width = (head & 0xFFF) - 2048, head >> 12
        bits = LowBits(tile, at + 2)
        for i in range(count):
            if i > 0:
                code = bits.take(width)
                dc += -(code >> 1) - 1 if code & 1 else code >> 1
            blocks.append([dc] + [0] * 63)
        at = bits.end
    luma = [is_luma for count, is_luma in parts for _ in range(count)]
    bitmaps, widths, at = control_bytes(tile, at, luma, codes)
    for block, bitmap, pairs in zip(blocks, bitmaps, widths):
        require(bitmap >> 63 == 0, "a 64th coefficient")
        bits = LowBits(tile, at)
        places = [k for k in range(1, 64) if bitmap >> (k - 1) & 1]
        for i, place in enumerate(places):
            width = pairs[i // 8] >> (4 if i % 8 >= 4 else 0) & 15
            require(1 <= width <= (7 if i % 8 >= 4 else 8), "the width of a field")
            half = 1 << (width - 1)
            value = bits.take(width) - half
            block[place] = value + 1 if value >= 0 else value
        at = bits.end
    require(at == len(tile), "the payload does not end with the tile")
    at = block = 0
    while at < len(corrections):
        short = struct.unpack_from("<H", corrections, at)[0]
        at += 2
        if short & 15:
            block, place, value = block + (short >> 4 & 3), short & 15, (short >> 6) - 512
        else:
            word = int.from_bytes(corrections[at : at + 3], "little")
            at += 3
            block, place, value = word & 63, word >> 6 & 63, (word >> 12) - 2048
        require(block < len(blocks) and blocks[block][place] != 0 and place > 0, "a correction of nothing")
        blocks[block][place] = value
    return blocks


class ScanWriter:
    """The entropy-coded data of a JPEG."""

    def __init__(self):
        self.out, self.bits, self.count = bytearray(), 0, 0

    def put(self, bits, count):
        self.bits, self.count = self.bits << count | bits, self.count + count
        while self.count >= 8:
            self.count -= 8
            byte = self.bits >> self.count & 255
            self.out.append(byte)
            if byte == 255:
                self.out.append(0)

    def pad(self):
        if self.count:
            self.put((1 << 8 - self.count) - 1, 8 - self.count)

    def value(self, codes, run, value):
        size = abs(value).bit_length()
        code, length = codes[run << 4 | size]
        self.put(code, length)
        self.put(value if value >= 0 else value + (1 << size) - 1, size)

    def block(self, block, difference, dc, ac):
        self.value(dc, 0, difference)
        run = 0
        for value in block[1:]:
            if value == 0:
                run += 1
                continue
            while run > 15:
                self.value(ac, 15, 0)
                run -= 16
            self.value(ac, run, value)
            run = 0
        if run:
            self.value(ac, 0, 0)


def restore(data):
    """The JPEG of a fast image; Damaged if these bytes are not one."""
    try:
        return restored(data)
    except (IndexError, KeyError, OverflowError, struct.error) as error:
        raise Damaged(str(error)) from error


def restored(data):
    require(len(data) >= 32 and data[:4] == b"\x89FBJ", "no fast image")
    version, tables, reserved, jpeg_length, crc, head, tail, count, checksum = struct.unpack_from("<BBHIIIIII", data, 4)
    require(version == 1 and tables <= 4 and reserved == 0, "another version")
    end = 32 + head + tail + 2 * count
    require(end <= len(data) and crc32c(data[:28], data[32:end]) == checksum, "the checksum of the header")
    head, tail = data[32 : 32 + head], data[32 + head : 32 + head + tail]
    lengths = struct.unpack_from(f"<{count}H", data, end - 2 * count)
    require(end + sum(lengths) == len(data), "the length of the file")
    jpeg = Jpeg(head)
    step = ROOM // jpeg.factors[0][0]
    tiles_across = -(-jpeg.across // step)
    require(count == tiles_across * jpeg.down, "the number of tiles")
    codes = code_tables(tables) if tables else None
    writer, predictors, mcu, at = ScanWriter(), [0] * len(jpeg.factors), 0, end
    for number, length in enumerate(lengths):
        columns = min(step, jpeg.across - number % tiles_across * step)
        parts = [(h * columns, i == 0) for i, (h, v) in enumerate(jpeg.factors) for _ in range(v)]
        blocks = read_tile(data[at : at + length], parts, codes)
        at += length
        for column in range(columns):
            if jpeg.restart and mcu and mcu % jpeg.restart == 0:
                writer.pad()
                writer.out += bytes([0xFF, 0xD0 + (mcu // jpeg.restart - 1) % 8])
                predictors = [0] * len(jpeg.factors)
            mcu += 1
            first = 0
            for i, (h, v) in enumerate(jpeg.factors):
                dc, ac = jpeg.selectors[i]
                for _ in range(v):
                    for block in blocks[first + column * h : first + (column + 1) * h]:
                        difference, predictors[i] = block[0] - predictors[i], block[0]
                        writer.block(block, difference, jpeg.tables[0, dc], jpeg.tables[1, ac])
                    first += h * columns
    writer.pad()
    result = head + bytes(writer.out) + tail
    require(len(result) == jpeg_length and crc32c(result) == crc, "the checksum of the JPEG")
    return result


if __name__ == "__main__":
    sys.stdout.buffer.write(restore(pathlib.Path(sys.argv[1]).read_bytes()))
