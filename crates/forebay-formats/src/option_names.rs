//! The options of `pack` and `convert` that texts name.

use forebay_options::OptionName;

/// `allow_no_image`.
pub const ALLOW_NO_IMAGE: OptionName = OptionName("allow_no_image");
/// `classes`.
pub const CLASSES: OptionName = OptionName("classes");
/// `class_order`.
pub const CLASS_ORDER: OptionName = OptionName("class_order");
/// `codec`.
pub const CODEC: OptionName = OptionName("codec");
/// `drop_feature`.
pub const DROP_FEATURE: OptionName = OptionName("drop_feature");
/// `from`.
pub const FROM: OptionName = OptionName("from");
/// `image_feature`.
pub const IMAGE_FEATURE: OptionName = OptionName("image_feature");
/// `key_feature`.
pub const KEY_FEATURE: OptionName = OptionName("key_feature");
/// `labels`.
pub const LABELS: OptionName = OptionName("labels");
/// `label_base`.
pub const LABEL_BASE: OptionName = OptionName("label_base");
/// `label_feature`.
pub const LABEL_FEATURE: OptionName = OptionName("label_feature");
/// `layout`.
pub const LAYOUT: OptionName = OptionName("layout");
/// `no_labels`.
pub const NO_LABELS: OptionName = OptionName("no_labels");
/// `on_bad`.
pub const ON_BAD: OptionName = OptionName("on_bad");
/// `overwrite`.
pub const OVERWRITE: OptionName = OptionName("overwrite");
/// `progressive`.
pub const PROGRESSIVE: OptionName = OptionName("progressive");
/// `shard_size`.
pub const SHARD_SIZE: OptionName = OptionName("shard_size");
