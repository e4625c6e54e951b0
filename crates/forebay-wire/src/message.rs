//! A message of any kind. `proto/wire.proto` defines their content.

use prost::Message as _;

use crate::error::{Error, Result};
use crate::kind::{Kind, messages};
use crate::wire;

macro_rules! message_of_each_kind {
    ($($kind:ident = $number:literal $client:literal $server:literal,)*) => {
        /// A message of any kind.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Message {
            $(#[doc = concat!("`", stringify!($kind), "` of `proto/wire.proto`.")] $kind(wire::$kind),)*
        }

        impl Message {
            /// Returns the kind of the message.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self {
                    $(Message::$kind(_) => Kind::$kind,)*
                }
            }

            /// Returns the length of the encoded message in bytes.
            #[must_use]
            pub fn encoded_len(&self) -> usize {
                match self {
                    $(Message::$kind(message) => message.encoded_len(),)*
                }
            }

            pub(crate) fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Message::$kind(message) => message.encode_raw(out),)*
                }
            }

            pub(crate) fn decode(kind: Kind, bytes: &[u8]) -> Result<Message> {
                Ok(match kind {
                    $(Kind::$kind => Message::$kind(
                        wire::$kind::decode(bytes)
                            .map_err(|source| Error::Message { kind, source: source.into() })?,
                    ),)*
                })
            }
        }

        $(impl From<wire::$kind> for Message {
            fn from(message: wire::$kind) -> Message {
                Message::$kind(message)
            }
        })*
    };
}

messages!(message_of_each_kind);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_proto() {
        for &kind in Kind::ALL {
            let known = wire::FrameKind::try_from(i32::from(kind as u8)).unwrap();
            let name = format!("FRAME_KIND_{kind}").to_uppercase();
            assert_eq!(known.as_str_name().replace('_', ""), name.replace('_', ""));
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
        }
        assert_eq!(Kind::from_number(0), None);
        assert!(wire::FrameKind::try_from(Kind::ALL.len() as i32 + 1).is_err());
    }
}
