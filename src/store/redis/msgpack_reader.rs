//! Reader of a list of numbers and texts packed by a script (`cmsgpack`), which is one value on the
//! wire. The client spends some thousand instructions on each number that is a value of its own.

/// Reader of the values of a list; holds those that were not read yet.
pub(super) struct MsgpackReader<'a>(&'a [u8]);

#[derive(Debug, PartialEq, Eq)]
pub(super) enum MsgpackValue<'a> {
    /// Negative numbers read as zero, and fractions are rounded down.
    Number(u64),
    Text(&'a [u8]),
    True,
}

impl<'a> MsgpackReader<'a> {
    /// Opens a packed list; `None` if it is no list.
    pub(super) fn from_array(packed: &'a [u8]) -> Option<Self> {
        let (kind, mut rest) = packed.split_first()?;
        match kind {
            0x90..=0x9f => {}
            0xdc => drop(take_uint(&mut rest, 2)?),
            0xdd => drop(take_uint(&mut rest, 4)?),
            _ => return None,
        }
        Some(Self(rest))
    }

    /// Returns the next value; `None` at the end, and for a value of any other type.
    pub(super) fn next_value(&mut self) -> Option<MsgpackValue<'a>> {
        let (kind, rest) = self.0.split_first()?;
        self.0 = rest;
        let number = match *kind {
            small @ 0..=0x7f => small.into(),
            0xcc => take_uint(&mut self.0, 1)?,
            0xcd => take_uint(&mut self.0, 2)?,
            0xce => take_uint(&mut self.0, 4)?,
            0xcf => take_uint(&mut self.0, 8)?,
            // Signed, hence negative: others are packed as above.
            width @ 0xd0..=0xd3 => {
                take_bytes(&mut self.0, 1 << (width - 0xd0))?;
                0
            }
            0xe0..=0xff => 0,
            0xca => saturating_u64(
                f32::from_bits(u32::try_from(take_uint(&mut self.0, 4)?).ok()?).into(),
            ),
            0xcb => saturating_u64(f64::from_bits(take_uint(&mut self.0, 8)?)),
            0xc3 => return Some(MsgpackValue::True),
            short @ 0xa0..=0xbf => return self.read_text(u64::from(short & 0x1f)),
            0xd9 => return take_uint(&mut self.0, 1).and_then(|length| self.read_text(length)),
            0xda => return take_uint(&mut self.0, 2).and_then(|length| self.read_text(length)),
            0xdb => return take_uint(&mut self.0, 4).and_then(|length| self.read_text(length)),
            _ => return None,
        };
        Some(MsgpackValue::Number(number))
    }

    fn read_text(&mut self, length: u64) -> Option<MsgpackValue<'a>> {
        take_bytes(&mut self.0, usize::try_from(length).ok()?).map(MsgpackValue::Text)
    }
}

fn take_bytes<'a>(input: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, remaining) = input.split_at_checked(length)?;
    *input = remaining;
    Some(taken)
}

fn take_uint(input: &mut &[u8], width: usize) -> Option<u64> {
    Some(take_bytes(input, width)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and NaN becomes zero"
)]
fn saturating_u64(number: f64) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_values_are_read_back() {
        // cmsgpack.pack({0, 127, 128, 255, 256, 65535, 65536, 2^32, 2^53 - 1, -1, -200, 'a',
        // ('b'):rep(40), true})
        let mut packed = vec![0x9e, 0, 127, 0xcc, 128, 0xcc, 255, 0xcd, 1, 0, 0xcd, 255, 255];
        packed.extend([0xce, 0, 1, 0, 0, 0xcf, 0, 0, 0, 1, 0, 0, 0, 0]);
        packed.extend([0xcf, 0, 0x1f, 255, 255, 255, 255, 255, 255, 0xff, 0xd1, 255, 0x38]);
        packed.extend([0xa1, b'a', 0xda, 0, 40]);
        packed.extend([b'b'; 40]);
        packed.push(0xc3);
        let mut reader = MsgpackReader::from_array(&packed).expect("a list");
        for number in [0, 127, 128, 255, 256, 65535, 65536, 1 << 32, (1 << 53) - 1, 0, 0] {
            assert_eq!(reader.next_value(), Some(MsgpackValue::Number(number)));
        }
        assert_eq!(reader.next_value(), Some(MsgpackValue::Text(b"a")));
        assert_eq!(reader.next_value(), Some(MsgpackValue::Text(&[b'b'; 40])));
        assert_eq!(reader.next_value(), Some(MsgpackValue::True));
        assert_eq!(reader.next_value(), None);
    }

    /// A number of Lua may be any double, and is packed as the shorter of two types that hold it.
    #[test]
    fn floats_are_read_as_clamped_integers() {
        // cmsgpack.pack({150.5, -0.5, 1/0, 0/0, 0.1 + 150, 1e20, -1e20, 7})
        let mut packed = vec![0x98];
        for float in [150.5_f32, -0.5, f32::INFINITY, f32::NAN] {
            packed.push(0xca);
            packed.extend(float.to_bits().to_be_bytes());
        }
        for double in [150.1_f64, 1e20, -1e20] {
            packed.push(0xcb);
            packed.extend(double.to_bits().to_be_bytes());
        }
        packed.push(7);
        let mut reader = MsgpackReader::from_array(&packed).expect("a list");
        for number in [150, 0, u64::MAX, 0, 150, u64::MAX, 0, 7] {
            assert_eq!(reader.next_value(), Some(MsgpackValue::Number(number)));
        }
        assert_eq!(reader.next_value(), None);
    }

    /// Whatever comes over the wire.
    #[test]
    fn reader_of_random_bytes_terminates() {
        bolero::check!().with_iterations(2_000).with_type::<Vec<u8>>().for_each(|bytes| {
            let mut remaining = bytes.len();
            let Some(mut reader) = MsgpackReader::from_array(bytes) else { return };
            while reader.next_value().is_some() {
                remaining = remaining.checked_sub(1).expect("each takes a byte at least");
            }
        });
    }
}
