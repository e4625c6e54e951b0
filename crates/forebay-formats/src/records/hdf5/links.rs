//! Lists the links of groups to other paths and to other files. The decoder follows links inside the file and skips the others.

use hdf5_reader::Hdf5File;
use hdf5_reader::btree_v1::collect_btree_v1_leaves_storage;
use hdf5_reader::btree_v2::{BTreeV2Header, BTreeV2Record, collect_btree_v2_records_storage};
use hdf5_reader::error::Error as Hdf5Error;
use hdf5_reader::fractal_heap::FractalHeap;
use hdf5_reader::group::Group;
use hdf5_reader::io::Cursor;
use hdf5_reader::local_heap::LocalHeap;
use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::link::{self, LinkMessage, LinkTarget};
use hdf5_reader::messages::link_info::LinkInfoMessage;
use hdf5_reader::messages::symbol_table_msg::SymbolTableMessage;
use hdf5_reader::symbol_table::SymbolTableNode;

/// The type of a symbol table entry that is a soft link.
const SOFT: u32 = 2;

/// A link to a path in this file or in another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) name: String,
    /// The other file; `None` for a link inside this file.
    pub(super) file: Option<String>,
    pub(super) path: String,
}

/// Lists the soft and external links of a group.
pub(super) fn links(file: &Hdf5File, group: &Group) -> Result<Vec<Link>, Hdf5Error> {
    let mut found = Vec::new();
    for message in &file.get_or_parse_header(group.address())?.messages {
        match message {
            HdfMessage::Link(message) => found.extend(of_message(message)),
            HdfMessage::LinkInfo(info) => dense(group, info, &mut found)?,
            HdfMessage::SymbolTable(table) => of_symbol_table(group, table, &mut found)?,
            _ => {}
        }
    }
    Ok(found)
}

fn of_message(message: &LinkMessage) -> Option<Link> {
    let (file, path) = match &message.target {
        LinkTarget::Soft { path } => (None, path),
        LinkTarget::External { filename, path } => (Some(filename.clone()), path),
        LinkTarget::Hard { .. } => return None,
    };
    Some(Link {
        name: message.name.clone(),
        file,
        path: path.clone(),
    })
}

/// Adds the links of a group that stores them in a heap, as groups with many links do.
fn dense(group: &Group, info: &LinkInfoMessage, found: &mut Vec<Link>) -> Result<(), Hdf5Error> {
    let (offset, length) = (group.offset_size(), group.length_size());
    let storage = group.storage();
    if Cursor::is_undefined_offset(info.fractal_heap_address, offset) {
        return Ok(());
    }
    let heap = FractalHeap::parse_at_storage(storage, info.fractal_heap_address, offset, length)?;
    let index = info.btree_name_index_address;
    let index = BTreeV2Header::parse_at_storage(storage, index, offset, length)?;
    let records =
        collect_btree_v2_records_storage(storage, &index, offset, length, None, &[], None)?;
    for record in &records {
        let BTreeV2Record::LinkNameHash { heap_id, .. } = record else {
            continue;
        };
        let bytes = heap.get_object_storage(heap_id, storage, offset, length)?;
        let message = link::parse(&mut Cursor::new(&bytes), offset, length, bytes.len())?;
        found.extend(of_message(&message));
    }
    Ok(())
}

/// Adds the links of a group that has a symbol table, as older versions of the library write it.
fn of_symbol_table(
    group: &Group,
    table: &SymbolTableMessage,
    found: &mut Vec<Link>,
) -> Result<(), Hdf5Error> {
    let (offset, length) = (group.offset_size(), group.length_size());
    let storage = group.storage();
    let heap = LocalHeap::parse_at_storage(storage, table.heap_address, offset, length)?;
    let root = table.btree_address;
    let leaves = collect_btree_v1_leaves_storage(storage, root, offset, length, None, &[], None)?;
    for (_, address) in leaves {
        let head = storage.read_range(address, 8)?;
        let count = match *head.as_ref() {
            [.., low, high] => usize::from(u16::from_le_bytes([low, high])),
            _ => 0,
        };
        let bytes = storage.read_range(address, 8 + count * (2 * usize::from(offset) + 24))?;
        let node = SymbolTableNode::parse(&mut Cursor::new(bytes.as_ref()), offset, length)?;
        for entry in node.entries.iter().filter(|entry| entry.cache_type == SOFT) {
            let at = entry.scratch.first_chunk().copied().unwrap_or_default();
            let at = u64::from(u32::from_le_bytes(at));
            found.push(Link {
                name: heap.get_string_storage(entry.link_name_offset, storage)?,
                file: None,
                path: heap.get_string_storage(at, storage)?,
            });
        }
    }
    Ok(())
}
