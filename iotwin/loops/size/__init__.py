"""``iotwin size``: the least storage with which a twin's training keeps a target."""
