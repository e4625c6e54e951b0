//! The kinds of messages, and which side may send each. `proto/wire.proto` defines their content.

use std::fmt;

use forebay_proto::prost::Message as _;
use forebay_proto::wire;

use crate::error::{Error, Result};

/// A side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Requests batches.
    Client,
    /// Sends batches.
    Server,
}

macro_rules! messages {
    ($($kind:ident = $number:literal $client:literal $server:literal,)*) => {
        /// The kind of a message. Its number is in the frame's head.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Kind {
            $(#[doc = concat!("`", stringify!($kind), "` of `proto/wire.proto`.")] $kind = $number,)*
        }

        impl Kind {
            /// All kinds, ordered by number.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// Returns the kind with this number.
            #[must_use]
            pub fn from_number(number: u8) -> Option<Kind> {
                match number {
                    $($number => Some(Kind::$kind),)*
                    _ => None,
                }
            }

            /// Returns whether `side` may send this kind.
            #[must_use]
            pub fn is_sent_by(self, side: Side) -> bool {
                let (client, server) = match self {
                    $(Kind::$kind => ($client, $server),)*
                };
                match side {
                    Side::Client => client,
                    Side::Server => server,
                }
            }
        }

        impl fmt::Display for Kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Kind::$kind => stringify!($kind),)*
                })
            }
        }

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
                        wire::$kind::decode(bytes).map_err(|source| Error::Message { kind, source })?,
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

messages! {
    // kind = number, sent by client, sent by server
    Hello = 1 true false,
    Welcome = 2 false true,
    Open = 3 true false,
    Opened = 4 false true,
    Batch = 5 false true,
    EpochEnd = 6 false true,
    Credit = 7 true false,
    Error = 8 true true,
    Ping = 9 true true,
    StatsRequest = 10 true false,
    Stats = 11 false true,
    Close = 12 true false,
}

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
