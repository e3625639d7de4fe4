//! tensorflow
